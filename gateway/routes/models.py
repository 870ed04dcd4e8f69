"""/v1/models: the names that requests may use."""

import msgspec

from gateway.routes.endpoint import Exchange
from gateway.schema.models import ModelCard, ModelList
from gateway.state import GatewayState


async def list_models(exchange: Exchange) -> None:
    """Every name."""
    state = exchange.state
    cards = [_card(state, name, state.ready().max_model_len) for name in state.model_names]
    await exchange.reply(msgspec.json.encode(ModelList(cards)))


async def get_model(exchange: Exchange) -> None:
    """One name, or 404."""
    state = exchange.state
    name = state.check_model(exchange.request.path_params["model"])
    await exchange.reply(msgspec.json.encode(_card(state, name, state.ready().max_model_len)))


def _card(state: GatewayState, name: str, max_model_len: int) -> ModelCard:
    return ModelCard(id=name, created=state.created, root=state.model_names[0], max_model_len=max_model_len)
