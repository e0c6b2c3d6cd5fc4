"""config: RocketMQ's AuthConfig, and what of it cannot be."""

from __future__ import annotations

import pytest

from mqlake.auth.config import AuthConfig, Credentials
from mqlake.errors import ConfigError

ON = {"authenticationEnabled": "true"}


def test_everything_is_off_by_default() -> None:
    config = AuthConfig()
    assert not (config.authentication_enabled or config.acl_enable or config.authorization_enabled)
    assert config.inner_credentials is None and config.first_users() == []


def test_the_first_users_are_those_of_java_s_keys() -> None:
    config = AuthConfig().replaced(
        {
            "initAuthenticationUser": '{"username":"root","password":"pw"}',
            "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"sk","securityToken":"t"}',
        }
    )
    assert config.inner_credentials == Credentials("inner", "sk", "t")
    assert config.first_users() == [Credentials("root", "pw"), Credentials("inner", "sk", "t")]
    assert "sk" not in repr(config.inner_credentials)


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"authorizationEnabled": "true"}, "needs authenticationEnabled"),
        ({**ON, "aclEnable": "true"}, "choose one"),
        ({"authenticationProvider": "com.example.Own"}, "DefaultAuthenticationProvider is there"),
        ({"initAuthenticationUser": '{"username":"s3cret'}, "initAuthenticationUser: not JSON"),
        ({"initAuthenticationUser": "[1]"}, "an object is needed"),
        ({"initAuthenticationUser": '{"username":"x"}'}, "username and password are needed"),
        ({"innerClientAuthenticationCredentials": '{"accessKey":"x"}'}, "accessKey and secretKey"),
        ({"metricsSourceIps": "10.0.0.0/99"}, "metricsSourceIps"),
    ],
)
def test_what_cannot_be_is_refused(properties: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        AuthConfig().replaced(properties)
    assert "s3cret" not in str(refused.value)


def test_white_lists_have_codes_and_names() -> None:
    config = AuthConfig().replaced(
        {"authenticationWhitelist": "105, 34,apache.rocketmq.v2.QueryRouteRequest"}
    )
    assert config.codes("authenticationWhitelist") == {34, 105}
    assert "apache.rocketmq.v2.QueryRouteRequest" in config.names("authenticationWhitelist")
    java = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    assert (
        AuthConfig().replaced({"authenticationMetadataProvider": java}).authentication_metadata_provider
        == java
    )
