"""The desk that is in another process: asked over the connection on which the engine's outputs come, too."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from gateway.admission import Demand, Progress
from gateway.tenant_usage import Bill
from gateway.tenants import Headers, Tenant
from gateway.visit import Visit
from ipc.desk import Answer, Check, Close, Enter, Entered, FromDesk, Leave, Outage, Question, ToDesk, TurnedAway
from ipc.errors import CapacityError, EngineError
from ipc.messages import Profile, Profiled

LONG_BODY = 64 * 1024
"""Bytes from which on a body is not even read where the desk would turn the request away anyhow; shorter ones are not
worth a question of their own."""

Send = Callable[[ToDesk], None]


@dataclass(slots=True)
class RemoteVisit:
    """The desk learns from the request itself, which carries ``number``, how far it is; what it costs the tenant is
    counted there. ``bill`` is for the response alone."""

    number: int
    tenant: Tenant
    rate_limits: Headers
    send: Send
    bill: Bill = field(default_factory=Bill)

    def attach(self, progress: Progress, *, num_prompt_tokens: int, num_choices: int, max_tokens: int) -> None:
        """Nothing to do here."""

    def end(self) -> None:
        """It is over, whichever way. Once."""
        self.send(Leave(self.number))


class RemoteDesk:
    """``send``: to the desk. Whoever reads what it sends hands ``receive`` what is for here."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Send) -> None:
        self._loop, self._send = loop, send
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Answer | Entered]] = {}
        self._is_draining, self._outage = False, ""

    @property
    def is_draining(self) -> bool:
        """No new requests are taken."""
        return self._is_draining

    def check_outage(self) -> None:
        """See ``gateway.desk.Desk``."""
        if self._outage:
            raise EngineError(self._outage, code="no_engine", status=503)

    async def check(self, tenant: Tenant, num_bytes: int) -> None:
        """See ``gateway.desk.Desk``."""
        if num_bytes >= LONG_BODY:
            await self._ask(Check(next(self._numbers), tenant.name, num_bytes))

    async def enter(self, tenant: Tenant, demand: Demand) -> Visit:
        """See ``gateway.desk.Desk``."""
        answer = await self._ask(
            Enter(
                next(self._numbers),
                tenant.name,
                demand.num_bytes,
                demand.num_prompts,
                demand.num_choices,
                demand.max_tokens,
                demand.ends_by_itself,
                demand.num_prompt_tokens,
                demand.deadline,
            )
        )
        assert isinstance(answer, Entered)
        return RemoteVisit(answer.visit, tenant, answer.rate_limits, self._send)

    async def metrics(self) -> bytes:
        """See ``gateway.desk.Desk``."""
        return await self._ask_about("metrics")

    async def usage(self) -> bytes:
        """See ``gateway.desk.Desk``."""
        return await self._ask_about("usage")

    async def requests(self) -> bytes:
        """See ``gateway.desk.Desk``."""
        return await self._ask_about("requests")

    async def drain(self) -> int:
        """See ``gateway.desk.Desk``."""
        self._is_draining = True
        return int(await self._ask_about("drain"))

    async def profile(self, message: Profile) -> Profiled:
        """See ``gateway.desk.Desk``."""
        return msgspec.msgpack.decode(await self._ask_about("profile", message), type=Profiled)

    async def _ask_about(self, what: str, message: Profile | None = None) -> bytes:
        answer = await self._ask(Question(next(self._numbers), what, message))
        assert isinstance(answer, Answer)
        return answer.body

    async def _ask(self, question: Check | Enter | Question) -> Answer | Entered:
        answer: asyncio.Future[Answer | Entered] = self._loop.create_future()
        self._asked[question.number] = answer
        self._send(question)
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.done() and answer.exception() is None:
                self._give_back(answer.result())  # it came just before the client left
            raise
        finally:
            del self._asked[question.number]

    def disconnect(self, error: EngineError) -> None:
        """Nobody answers any more."""
        self._is_draining = True
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)

    def receive(self, message: FromDesk) -> None:
        """An answer, or the news that there is no way in any more."""
        match message:
            case Close():
                self._is_draining = True
            case Outage():
                self._outage = message.reason
            case TurnedAway():
                self._fail(message)
            case Answer() | Entered():
                answer = self._asked.get(message.number)
                if answer is None or answer.done():
                    self._give_back(message)
                else:
                    answer.set_result(message)

    def _fail(self, message: TurnedAway) -> None:
        answer = self._asked.get(message.number)
        if answer is None or answer.done():
            return
        if message.retry_after:
            answer.set_exception(
                CapacityError(message.message, retry_after=message.retry_after, rate_limits=message.rate_limits)
            )
        else:
            answer.set_exception(EngineError(message.message, code="not_ready", status=503))

    def _give_back(self, message: Answer | Entered) -> None:
        """Whoever asked has left meanwhile."""
        if isinstance(message, Entered):
            self._send(Leave(message.visit))
