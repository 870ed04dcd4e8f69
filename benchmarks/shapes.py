"""The shapes of the models that kernels are measured at. Sizes in elements; nothing is read from a file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearShape:
    """One of a layer's linears: [outputs, inputs], summed in ``segments`` of the inputs."""

    name: str
    num_outputs: int
    num_inputs: int
    segments: int = 1
    is_gated: bool = False


@dataclass(frozen=True, slots=True)
class Shapes:
    """A decoder. ``segments``: of o_proj and down_proj."""

    name: str
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate: int
    vocab: int
    segments: int

    @property
    def linears(self) -> tuple[LinearShape, ...]:
        """A layer's, without the head."""
        heads = self.num_heads * self.head_size
        return (
            LinearShape("qkv_proj", heads + 2 * self.num_kv_heads * self.head_size, self.hidden),
            LinearShape("o_proj", self.hidden, heads, self.segments),
            LinearShape("gate_up_proj", 2 * self.intermediate, self.hidden, is_gated=True),
            LinearShape("down_proj", self.hidden, self.intermediate, self.segments),
        )

    @property
    def head(self) -> LinearShape:
        """The linear that gives the logits."""
        return LinearShape("lm_head", self.vocab, self.hidden)


SMOLLM2 = Shapes("SmolLM2-135M", 576, 9, 3, 64, 1536, 49152, segments=3)
LLAMA_1B = Shapes("Llama-3.2-1B", 2048, 32, 8, 64, 8192, 128256, segments=8)
