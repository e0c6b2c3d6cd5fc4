"""FastStream's own test cases for brokers, for RocketBroker: copied into a checkout of FastStream and run there.

Its tests are in its repository alone, so test_shared_cases runs this where MQLAKE_FASTSTREAM_SOURCE names a checkout.
"""
# mypy: ignore-errors

from __future__ import annotations

import os

import pytest
from faststream import BaseMiddleware

from mqlake.adapters.faststream import (
    RocketBroker,
    RocketPublisherRoute,
    RocketRoute,
    RocketRouter,
    TestRocketBroker,
)
from mqlake.adapters.faststream.command import RocketPublishCommand
from mqlake.adapters.faststream.testing import InMemoryProducer
from tests.brokers.base.basic import BaseTestcaseConfig
from tests.brokers.base.codec import CodecTestcase
from tests.brokers.base.connection import BrokerConnectionTestcase
from tests.brokers.base.consume import BrokerRealConsumeTestcase
from tests.brokers.base.include_router import IncludePublisherTestcase, IncludeSubscriberTestcase
from tests.brokers.base.middlewares import (
    ExceptionMiddlewareTestcase,
    MiddlewaresOrderTestcase,
    MiddlewareTestcase,
)
from tests.brokers.base.parser import CustomParserTestcase
from tests.brokers.base.publish import BrokerPublishTestcase
from tests.brokers.base.publish_command import BatchPublishCommandTestcase
from tests.brokers.base.requests import RequestsTestcase
from tests.brokers.base.router import RouterLocalTestcase, RouterTestcase
from tests.brokers.base.testclient import BrokerTestclientTestcase

pytestmark = [pytest.mark.asyncio, pytest.mark.filterwarnings("ignore:The test .* is marked with")]
NAMESRV = os.environ["MQLAKE_NAMESRV"]


class Real(BaseTestcaseConfig):
    timeout = 10.0

    def get_broker(self, apply_types=False, **options):
        return RocketBroker(NAMESRV, apply_types=apply_types, **options)

    def get_router(self, **options):
        return RocketRouter(**options)

    def get_subscriber_params(self, *arguments, **options):
        return arguments, {"retry_delays_s": (0.1,), **options}


class InMemory(Real):
    def patch_broker(self, *brokers, **options):
        return TestRocketBroker(*brokers, **options)


class Quadruple(BaseMiddleware):
    async def consume_scope(self, call_next, msg):
        msg.body *= 4
        return await call_next(msg)


class Requests(RequestsTestcase):
    def get_middleware(self, **_):
        return Quadruple


class TestConnection(BrokerConnectionTestcase):
    broker = RocketBroker

    def get_broker_args(self, settings):
        return {"where": NAMESRV}

    @pytest.fixture
    def settings(self):
        return None


class TestConsume(Real, BrokerRealConsumeTestcase):
    pass


class TestPublish(Real, BrokerPublishTestcase):
    pass


class TestRequests(Real, Requests):
    pass


class TestRouter(Real, RouterTestcase):
    route_class = RocketRoute
    publisher_class = RocketPublisherRoute


class TestMiddlewares(Real, MiddlewareTestcase):
    pass


class TestExceptions(Real, ExceptionMiddlewareTestcase):
    pass


class TestParser(Real, CustomParserTestcase):
    pass


class TestIncludeSubscriber(Real, IncludeSubscriberTestcase):
    pass


class TestIncludePublisher(Real, IncludePublisherTestcase):
    pass


class TestCommand(BatchPublishCommandTestcase):
    publish_command_cls = RocketPublishCommand


class TestInMemory(InMemory, BrokerTestclientTestcase):
    def get_fake_producer_class(self):
        return InMemoryProducer

    async def test_broker_gets_patched_attrs_within_cm(self):
        await super().test_broker_gets_patched_attrs_within_cm(InMemoryProducer)


class TestInMemoryRequests(InMemory, Requests):
    pass


class TestInMemoryRouter(InMemory, RouterLocalTestcase):
    route_class = RocketRoute
    publisher_class = RocketPublisherRoute


class TestInMemoryOrder(InMemory, MiddlewaresOrderTestcase):
    pass


class TestInMemoryCodec(InMemory, CodecTestcase):
    pass
