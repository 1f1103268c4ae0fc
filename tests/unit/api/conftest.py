"""A FakeService, and a client of the HTTP layer over it, in process."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.support.api_rig import client_of
from tests.support.fake_service import FakeService


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest_asyncio.fixture
async def client(service: FakeService) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(service) as client:
        yield client
