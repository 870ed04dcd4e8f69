"""Two log lines a request, when it is taken and when it is over: numbers and names, never its text."""

from dataclasses import dataclass

from observability.logging import get_logger
from observability.request_summary import RequestSummary

log = get_logger("octavo.requests")


@dataclass(frozen=True, slots=True)
class RequestLog:
    """``request_id`` is that of the HTTP exchange, ``id`` the response's. The lines are written from wherever the
    engine's outputs are read, so they carry both themselves."""

    request_id: str
    id: str
    trace_id: str
    tenant: str
    model: str

    def accepted(self, *, num_prompt_tokens: int, n: int, max_tokens: int | None, is_stream: bool) -> None:
        """The engine has it in its queue."""
        log.info(
            "request accepted",
            **self._names(),
            prompt_tokens=num_prompt_tokens,
            n=n,
            max_tokens=max_tokens,
            stream=is_stream,
        )

    def ended(self, request: RequestSummary) -> None:
        """It is over, whichever way. Durations are in seconds."""
        durations = {f"{phase.name}_seconds": round(phase.seconds, 6) for phase in request.times.phases()}
        if request.first_token_seconds is not None:
            durations["first_token_seconds"] = round(request.first_token_seconds, 6)
        error = {} if request.error_type is None else {"error": request.error_type}
        log.info(
            "request ended",
            **self._names(),
            finish_reason=request.finished_reason,
            prompt_tokens=request.num_prompt_tokens,
            cached_tokens=request.num_cached_tokens,
            output_tokens=request.num_generation_tokens,
            preemptions=request.num_preemptions,
            seconds=round(request.times.seconds, 6),
            **durations,
            **error,
        )

    def refused(self, error_type: str, seconds: float) -> None:
        """The engine did not take it."""
        log.info("request refused", **self._names(), error=error_type, seconds=round(seconds, 6))

    def _names(self) -> dict[str, str]:
        names = {"request_id": self.request_id, "id": self.id, "model": self.model, "tenant": self.tenant}
        return {**names, "trace_id": self.trace_id} if self.trace_id else names
