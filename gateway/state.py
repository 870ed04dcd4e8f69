"""What every route needs: built once by whoever starts the gateway, handed to ``create_app``.

Holds no logic beyond "may this request be served now".
"""

import hashlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from gateway.chat_parsers import ChatParsers
from gateway.desk import Desk
from gateway.engine_client import EngineClient
from gateway.recorder import RequestMetrics, RequestObserver
from gateway.schema.resolve import ModelLimits, SamplingDefaults
from gateway.template_workers import TemplateWorkers
from gateway.tenants import Tenants
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer
from ipc.config import GatewayConfig
from ipc.errors import EngineError, RequestError
from ipc.messages import Ready
from observability.tracing import Tracing


class ServerMetrics(RequestMetrics, Protocol):
    """What the HTTP side needs of ``observability.metrics.Metrics``."""

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None: ...


@dataclass(slots=True)
class GatewayState:
    """``model_names``: what requests may call the model, the first is its own. ``created``: unix seconds.

    ``desk`` decides who is let in, ``tenants`` are those whose keys are known, ``executor`` runs long tokenization and
    templates, ``observer`` is told of requests that are over. ``captures_content``: traces hold text.
    """

    config: GatewayConfig
    model_names: tuple[str, ...]
    client: EngineClient
    desk: Desk
    tenants: Tenants
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    chat_parsers: ChatParsers
    defaults: SamplingDefaults
    metrics: ServerMetrics
    tracing: Tracing
    executor: ThreadPoolExecutor
    created: int
    version: str
    max_logprobs: int = 20
    accepts_priority: bool = False
    template_workers: TemplateWorkers = field(default_factory=TemplateWorkers)
    observer: RequestObserver | None = None
    captures_content: bool = False
    logs_requests: bool = False

    def ready(self) -> Ready:
        """The engine's handshake. Raises EngineError (503) while nothing can be served."""
        if self.desk.is_draining:
            raise EngineError("the server is shutting down and takes no new requests", code="draining", status=503)
        return self.client.ready

    def limits(self) -> ModelLimits:
        """The model's limits. Raises EngineError (503) while nothing can be served."""
        return ModelLimits.of(self.ready(), self.max_logprobs)

    def check_model(self, name: str | None) -> str:
        """The name that the response carries. Raises RequestError (404) for a model that is not served."""
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            raise RequestError(
                f"the model {shortened(name)} does not exist here; served: {listed(self.model_names)}",
                param="model",
                code="model_not_found",
                status=404,
            )
        return name

    def fingerprint(self, ready: Ready) -> str:
        """OpenAI's ``system_fingerprint``: equal only where a seed gives equal tokens."""
        digest = hashlib.sha256(f"{ready.numerics_id}\n{ready.model_digest}".encode()).hexdigest()
        return f"octavo-{self.version}-{digest[:8]}"


def shortened(text: str) -> str:
    """A client's own text for an error message, without line breaks and bounded."""
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:100] + "..."


def listed(names: Collection[str]) -> str:
    """Names for a sentence."""
    return ", ".join(names)
