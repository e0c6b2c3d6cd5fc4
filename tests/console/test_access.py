"""Logging in, and users and acls, on a broker with access control."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from mqlake.client import Message
from mqlake.client.blocking import Admin, Producer
from mqlake.client.config import ClientConfig
from mqlake.console.app import ConsoleConfig
from mqlake.console.ask import Cluster
from mqlake.console.store_files import named
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.loop import run
from mqlake.testing import RocketMQ
from tests.cli.test_serve import ready
from tests.cli.test_serve import serving as broker_serving
from tests.console.live import Answer, Browser, Served, serving
from tests.console.test_cluster import fields
from tests.store.small_store import fill

ADMIN, SECRET = "admin", "admin-secret-123"


@pytest.fixture(scope="module")
def broker() -> Iterator[RocketMQ]:
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": ADMIN, "password": SECRET}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": ADMIN, "secretKey": SECRET}),
    }
    with RocketMQ(**settings) as running:
        yield running


@pytest.fixture(scope="module")
def served(broker: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = fill(tmp_path_factory.mktemp("access") / "store", count=3)
    config = ConsoleConfig(
        # what the command was given is for MCP: it opens no page
        ClientConfig(namesrv_addr=broker.namesrv, access_key=ADMIN, secret_key=SECRET),
        named([str(store)]),
        allow_changes=True,
    )
    with serving(config) as found:
        yield found


def logged_in(served: Served, user: str = ADMIN, secret: str = SECRET) -> Browser:
    browser = served.browser()
    answer = browser.post("/login?next=/topics", user=user, secret=secret)
    assert answer.status == 303 and answer.headers["location"] == "/topics", answer.text
    return browser


def test_nothing_is_shown_before_the_login(served: Served) -> None:
    browser = served.browser()
    for page in ("/", "/topics", "/groups/a", "/stores", "/stores/store/log", "/users"):
        answer = browser.get(page)
        assert answer.status == 303 and answer.headers["location"].startswith("/login?next=%2F"), page
        assert browser.get(page, format="json").status == 401
    for page in ("/topics/T/export", "/topics/T/tail/events"):
        assert browser.get(page).status == 403


def test_a_wrong_secret_is_refused_and_shown_nowhere(served: Served) -> None:
    browser = served.browser()
    answer = browser.post("/login?next=//evil.example", user=ADMIN, secret="wrong-secret")
    assert (
        answer.status == 403
        and "wrong-secret" not in answer.text
        and "user or secret is wrong" in answer.text
    )
    assert 'action="/login?next=%2F"' in answer.text  # to no other site
    assert browser.ask("POST", "/login", "user=admin&secret=x").status == 403  # without a token
    assert browser.get("/topics").status == 303


def test_guessing_a_secret_becomes_slower_and_slower(served: Served) -> None:
    """Also with many tries at once. Who knows the secret gets in from elsewhere, and when the pause is over."""
    browser = served.browser()
    token = browser.get("/session").json["csrf"]
    asked: list[str] = []
    gate = served.server.console.gate
    assert gate is not None
    log_in = gate.log_in

    async def counted(name: str, secret: str) -> Cluster:
        asked.append(secret)
        return await log_in(name, secret)

    def guess(secret: str) -> None:
        body = urlencode({"csrf": token, "user": "guessed", "secret": secret})
        answers.append(browser.ask("POST", "/login", body, X_Forwarded_For="192.0.2.7"))

    answers: list[Answer] = []
    gate.log_in = counted  # type: ignore[method-assign]
    try:
        guessing = [threading.Thread(target=guess, args=(f"guess-{number}",)) for number in range(40)]
        for thread in guessing:
            thread.start()
        for thread in guessing:
            thread.join()
    finally:
        gate.log_in = log_in  # type: ignore[method-assign]
    assert len(asked) == len([answer for answer in answers if answer.status == 403]) < 20
    refused = [answer for answer in answers if answer.status == 429]
    assert len(refused) == 40 - len(asked)
    assert all(
        int(answer.headers["retry-after"]) >= 1 and "try again in" in answer.text for answer in refused
    )
    logged_in(served)


def test_a_session_is_new_at_the_login_and_ends(served: Served) -> None:
    browser = served.browser()
    browser.get("/login")
    before = dict(browser.cookies)
    answer = browser.post("/login", user=ADMIN, secret=SECRET)
    assert answer.status == 303 and browser.cookies != before
    assert "httponly" in answer.headers["set-cookie"].lower()
    for page in ("/topics", "/users", "/stores/store/log", "/"):
        text = browser.get(page).text
        assert SECRET not in text and ADMIN in text
    stolen = dict(browser.cookies)
    assert browser.post("/logout").status == 303
    assert Browser(browser.address, stolen).get("/topics").status == 303


def test_users_and_acls_change_only_after_a_look(served: Served) -> None:
    browser = logged_in(served)

    def users() -> dict[str, dict[str, object]]:
        return {user["name"]: user for user in browser.data("/users")["users"]}

    assert users().keys() == {ADMIN}
    answer = browser.post("/users", action="create", user="reader", type="Normal")
    assert "reader" not in users()
    secret = "reader-secret-123"
    answer = browser.post("/users", **fields(answer.text), secret=secret, confirm="true")
    assert answer.status == 200 and secret not in answer.text
    assert users()["reader"]["type"] == "Normal"
    answer = browser.post("/users", action="grant", user="reader", resource="Topic:*", actions="Get,List,Sub")
    assert users()["reader"]["policies"] == []
    browser.post("/users", **fields(answer.text), confirm="true")
    assert "Topic:*" in str(users()["reader"]["policies"])
    normal = logged_in(served, "reader", secret)
    answer = normal.get("/stores/store/log", format="json")
    assert answer.status == 403 and "super" in answer.json["error"]
    answer = normal.post("/users", action="delete", user=ADMIN, confirm="true")
    assert ADMIN in users()
    answer = browser.post("/users", action="revoke", user="reader", resource="Topic:*")
    browser.post("/users", **fields(answer.text), confirm="true")
    assert "Topic:*" not in str(users()["reader"]["policies"])
    answer = browser.post("/users", action="status", user="reader", status="disable")
    browser.post("/users", **fields(answer.text), confirm="true")
    assert users()["reader"]["status"] == "disable"
    answer = browser.post("/users", action="delete", user="reader")
    browser.post("/users", **fields(answer.text), confirm="true")
    assert users().keys() == {ADMIN}
    assert browser.post("/users", action="grant", user="reader", resource="x", actions="Get").status == 400
    assert browser.post("/users", action="rename", user="reader").status == 404


def test_every_mcp_tool_works_for_a_user_who_may_only_read(broker: RocketMQ, served: Served) -> None:
    """The broker would refuse what changes anything."""
    # a second to load, and each worker collects all files
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    user, secret = "looks", "looks-secret-123"
    browser = logged_in(served)
    browser.post("/users", action="create", user=user, type="Normal", secret=secret, confirm="true")
    for kind in ("Topic", "Group", "Cluster"):
        acl = {"resource": f"{kind}:*", "actions": "Get,List" if kind == "Cluster" else "Get,List,Sub"}
        browser.post("/users", action="grant", user=user, confirm="true", **acl)
    super_user = ClientConfig(namesrv_addr=broker.namesrv, access_key=ADMIN, secret_key=SECRET)
    with Admin(super_user) as admin:
        admin.create_topic("Orders", queues=1)
        admin.create_subscription_group(SubscriptionGroupConfig(group_name="billing"))
    with Producer("shop", super_user) as producer:
        sent = producer.send(Message("Orders", b"1 apple"))
    values = {"topic": "Orders", "group": "billing", "address": broker.broker, "id": sent.msg_id}
    values |= {"broker": sent.message_queue.broker_name, "queue": 0, "offset": 0}
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "mqlake", "console", "--mcp", "-n", broker.namesrv],
        env={**os.environ, "MQLAKE_ACCESS_KEY": user, "MQLAKE_SECRET_KEY": secret},
    )

    async def scene() -> set[str]:
        async with Client(stdio_client(command)) as client:
            tools = (await client.list_tools()).tools
            for tool in tools:
                known = values.keys() & tool.input_schema["properties"].keys()
                answer = await client.call_tool(tool.name, {name: values[name] for name in known})
                assert not answer.is_error, (tool.name, answer.content)
            return {tool.name for tool in tools}

    assert {"list_topics", "show_message", "list_users", "broker_settings"} <= run(scene())


def test_the_console_of_serve_changes_things_for_users_of_the_cluster(tmp_path: Path) -> None:
    """`mqlake serve --auth --console-port --allow-changes`: a message, and a setting that waits for a restart."""
    conf = tmp_path / "broker.conf"
    options = ["--auth", "--json", "--console-port=0", "--allow-changes", "--grpc-port=-1"]
    settings = ["brokerConfigPath=" + str(conf), "mappedFileSizeCommitLog=1m", "diskMaxUsedSpaceRatio=99"]
    with broker_serving(tmp_path / "data", *options, *(f"--set={each}" for each in settings)) as process:
        where = ready(process)
        browser = Browser(urlsplit(str(where["console"])).netloc)
        assert browser.get("/topics").status == 303
        assert browser.post("/topics/T/send", body="x").status == 303  # not logged in
        secret = str(where["password"])
        assert browser.post("/login", user=where["user"], secret=secret).status == 303
        user = {"access_key": str(where["user"]), "secret_key": secret}
        with Admin(ClientConfig(namesrv_addr=str(where["namesrv"]), **user)) as admin:
            admin.create_topic("Orders", queues=1)
        assert browser.post("/topics/Orders/send", body="1 apple").status == 200
        assert [row["bodyText"] for row in browser.data("/topics/Orders/messages")["messages"]] == ["1 apple"]
        [broker] = browser.data("/brokers")["brokers"]
        page = f"/brokers/{broker['address']}/settings"
        answer = browser.post(page, key="inSyncReplicas", value="3")
        answer = browser.post(page, **fields(answer.text), confirm="true")
        assert "from the next start on: inSyncReplicas" in answer.text
        found = browser.data(page, filter="inSyncReplicas")
        assert found["settings"]["inSyncReplicas"] == "1" and found["pendingRestart"] == {
            "inSyncReplicas": "3"
        }
        text = browser.get(page, filter="inSyncReplicas").text
        assert "after a restart: 3" in text and secret not in text
    assert "inSyncReplicas=3" in conf.read_text()


def test_changes_need_a_console_to_be_made_in(tmp_path: Path) -> None:
    with broker_serving(tmp_path, "--allow-changes") as process:
        _, said = process.communicate()
    assert process.returncode != 0 and "--console-port" in said
