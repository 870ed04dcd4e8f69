from typing import Any

import pytest
from gateway_fakes import FakeEngineClient, make_state

from gateway.app import create_app
from gateway.state import GatewayState


@pytest.fixture
def engine() -> FakeEngineClient:
    return FakeEngineClient()


@pytest.fixture
def state(engine: FakeEngineClient) -> GatewayState:
    return make_state(engine)


@pytest.fixture
def app(state: GatewayState) -> Any:
    return create_app(state)
