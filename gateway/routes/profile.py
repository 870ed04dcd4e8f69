"""POST /admin/profile/start and /stop: what the engine does, written to files beside it."""

import msgspec

from gateway.profile_questions import NO_ENGINE
from gateway.routes.endpoint import Exchange
from gateway.routes.local import check_local
from gateway.schema.decoding import decode_request
from gateway.schema.profile import ProfileStatus, start_decoder, stop_decoder
from ipc.errors import EngineError, RequestError
from ipc.messages import Profile, Profiled


async def start(exchange: Exchange) -> None:
    """Begins a profile, which ends after ``num_steps`` or ``max_seconds``, or when it is stopped.

    400 without ``--profile-dir``, 409 while there is one. Where no keys are set, only whoever is on this machine may
    ask: 403.
    """
    check_local(exchange, "profile the engine")
    body = decode_request(start_decoder, await exchange.request.body() or b"{}")
    answer = await _ask(exchange, Profile(0, "start", body.num_steps or 0))
    status = ProfileStatus("started", list(answer.files), answer.num_steps, max_seconds=answer.seconds)
    await exchange.reply(msgspec.json.encode(status))


async def stop(exchange: Exchange) -> None:
    """Ends it, and answers when its files are written. 409 if there is none."""
    check_local(exchange, "profile the engine")
    decode_request(stop_decoder, await exchange.request.body() or b"{}")
    answer = await _ask(exchange, Profile(0, "stop"))
    status = ProfileStatus("written", list(answer.files), answer.num_steps, seconds=answer.seconds)
    await exchange.reply(msgspec.json.encode(status))


async def _ask(exchange: Exchange, message: Profile) -> Profiled:
    """Raises RequestError or EngineError for an answer that is an error."""
    answer = await exchange.state.desk.profile(message)
    match answer.code:
        case "":
            return answer
        case "no_profile_dir":
            raise RequestError(answer.error, code=answer.code)
        case "conflict":
            raise RequestError(answer.error, code="profile_conflict", status=409)
        case code:
            raise EngineError(answer.error, code=code, status=503 if code == NO_ENGINE else 500)
