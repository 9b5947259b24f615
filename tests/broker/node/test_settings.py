"""Where settings come from, what they may be, and how a wrong one is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from flyball.broker.settings import Address, ServeSettings, StoreChoice, load_settings, options
from flyball.errors import SettingsError

PASSWORD = "s3cret"


def settings_file(folder: Path, text: str) -> str:
    path = folder / "flyball.toml"
    path.write_text(text)
    return str(path)


def test_the_defaults_are_valid_and_have_their_documented_values() -> None:
    settings = load_settings({}, {})
    assert settings == ServeSettings()
    assert settings.config is None
    assert settings.data == Path("./data")
    assert settings.store == StoreChoice("embedded")
    assert settings.telesto is None
    assert settings.thorbang is None
    assert load_settings({"thorbang": "on"}, {}).thorbang == Address("127.0.0.1", 8123)
    assert load_settings({"telesto": "on"}, {}).telesto == Address("127.0.0.1", 9001)
    assert settings.telesto_time_order == "newest"
    assert settings.resident_bytes == 256 * 2**20
    assert settings.store_time_limit_s == 10
    assert settings.trace is True
    assert settings.trace_keep_bytes == 2**30


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    path = settings_file(
        tmp_path,
        '[telesto]\naddress = "h:1"\n[thorbang]\naddress = "h:1"\n[log]\nlevel = "error"\n',
    )
    environment = {"FLYBALL_TELESTO": "h:2", "FLYBALL_THORBANG": "h:2", "FLYBALL_CONFIG": path}
    settings = load_settings({"telesto": "h:3"}, environment)
    assert settings.telesto == Address("h", 3)
    assert settings.thorbang == Address("h", 2)
    assert settings.log_level == "error"
    assert settings.log_format == "text"


def test_the_file_named_by_a_flag_wins_over_the_one_named_by_the_environment(tmp_path: Path) -> None:
    path = settings_file(tmp_path, 'data = "/there"')
    settings = load_settings({"config": path}, {"FLYBALL_CONFIG": "/nonexistent"})
    assert settings.data == Path("/there")


def test_an_empty_environment_variable_counts_as_absent() -> None:
    assert load_settings({}, {"FLYBALL_AMQP": ""}).amqp == Address("127.0.0.1", 5672)


@pytest.mark.parametrize(
    ("text", "users"), [("none", ()), ("guest", ("guest",)), ("guest, admin", ("guest", "admin"))]
)
def test_names_are_separated_by_commas_and_none_is_none(text: str, users: tuple[str, ...]) -> None:
    assert load_settings({"loopback_users": text}, {}).loopback_users == users


def test_every_setting_but_the_file_itself_can_stand_in_the_file(tmp_path: Path) -> None:
    text = """
        data = "d"
        name = "north-1"
        [store]
        location = "memory"
        time_limit_s = 2.5
        [domain]
        lease_s = 7
        capacity = 2
        link_address = "[::1]:2"
        link_tls_cert = "lc"
        link_tls_key = "lk"
        link_tls_ca = "la"
        advertise = "north.example"
        provisioners = "p"
        [amqp]
        address = "off"
        tls_address = "[::1]:1"
        heartbeat_s = 30
        channel_max = 31
        frame_max_bytes = "1MiB"
        consumer_timeout_s = 32
        [tls]
        cert = "c"
        key = "k"
        ca = "a"
        [telesto]
        address = "off"
        time_order = "oldest"
        [thorbang]
        address = "[::1]:0"
        max_request_bytes = 1000
        [http]
        address = "[::1]:2"
        proxies = ["10.0.0.1", "10.1.2.3/8"]
        reports = "out"
        [access]
        loopback_users = ["guest", "admin"]
        token_file = "t"
        [limits]
        max_message_bytes = 5
        max_connections = 6
        max_channels = 3
        max_unauthenticated = 4
        resident_bytes = 7
        memory_bytes = 9
        disk_free_bytes = 10
        pace_per_s = 500
        [trace]
        enabled = false
        sample_ratio = 0.25
        most_per_s = 8
        keep_bytes = "2 GB"
        [log]
        level = "debug"
        format = "json"
        file = "l"
    """
    path = settings_file(tmp_path, text)
    settings = load_settings({"config": path}, {})
    assert settings.model_dump() == {
        "config": Path(path),
        "data": Path("d"),
        "name": "north-1",
        "store": {"kind": "memory", "url": ""},
        "store_time_limit_s": 2.5,
        "lease_s": 7.0,
        "capacity": 2.0,
        "link": Address("::1", 2),
        "link_tls_cert": Path("lc"),
        "link_tls_key": Path("lk"),
        "link_tls_ca": Path("la"),
        "advertise": "north.example",
        "provisioners": Path("p"),
        "amqp": None,
        "amqps": Address("::1", 1),
        "amqp_heartbeat_s": 30,
        "amqp_channel_max": 31,
        "amqp_frame_max_bytes": 2**20,
        "amqp_consumer_timeout_s": 32,
        "tls_cert": Path("c"),
        "tls_key": Path("k"),
        "tls_ca": Path("a"),
        "telesto": None,
        "token_file": Path("t"),
        "telesto_time_order": "oldest",
        "thorbang": Address("::1", 0),
        "thorbang_max_request_bytes": 1000,
        "http": Address("::1", 2),
        "http_proxies": ("10.0.0.1", "10.0.0.0/8"),
        "reports": Path("out"),
        "loopback_users": ("guest", "admin"),
        "max_message_bytes": 5,
        "max_connections": 6,
        "max_channels": 3,
        "max_unauthenticated": 4,
        "resident_bytes": 7,
        "memory_bytes": 9,
        "disk_free_bytes": 10,
        "pace_per_s": 500,
        "trace": False,
        "trace_sample_ratio": 0.25,
        "trace_most_per_s": 8,
        "trace_keep_bytes": 2 * 10**9,
        "log_level": "debug",
        "log_format": "json",
        "log_file": Path("l"),
    }
    assert all(option.key is not None for option in options() if option.name != "config")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("telesto", "9001"),
        ("telesto", "localhost:"),
        ("telesto", ":9001"),
        ("telesto", "localhost:65536"),
        ("telesto", "::1:9001"),
        ("telesto", "localhost:-1"),
        ("telesto_time_order", "random"),
        ("store", "sqlite"),
        ("store", "postgresql:database"),
        ("store", "postgresql://[host/db"),
        ("store_time_limit_s", "0"),
        ("store_time_limit_s", "inf"),
        ("http_proxies", "*"),
        ("http_proxies", "10.0.0.1,proxy.example"),
        ("max_connections", "0"),
        ("max_connections", "many"),
        ("resident_bytes", "0"),
        ("resident_bytes", "lots"),
        ("trace", "perhaps"),
        ("trace_sample_ratio", "1.5"),
        ("trace_sample_ratio", "nan"),
        ("log_level", "loud"),
    ],
)
def test_a_bad_value_names_the_flag_or_variable_to_correct(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as by_flag:
        load_settings({name: value}, {})
    assert by_flag.value.place == "--" + name.replace("_", "-")
    with pytest.raises(SettingsError) as by_variable:
        load_settings({}, {"FLYBALL_" + name.upper(): value})
    assert by_variable.value.place == "FLYBALL_" + name.upper()


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ('[telesto]\naddress = "here"', ": [telesto] address", "'here' is not a valid address"),
        ("[telesto]\naddress = 9001", ": [telesto] address", "use host:port"),
        ('[log]\nlevel = "loud"', ": [log] level", "'loud' is not valid: use debug|info|warning|error"),
        ("data = 3", ": data", "3 is not valid: use FOLDER"),
        (
            '[limits]\nmemory_bytes = "lots"',
            ": [limits] memory_bytes",
            "'lots' is not valid: use a size such as 64MiB",
        ),
        ('[telesto]\nadress = "h:1"', ": telesto.adress", "did you mean [telesto] address?"),
        ('store = "memory"', ": store", "did you mean [store] location?"),
        ("[database]\nx = 1", ": database", "no such setting"),
        ('config = "other.toml"', ": config", "no such setting"),
        ("not toml", "", "not a valid TOML file"),
    ],
)
def test_a_bad_file_names_the_file_and_the_key(tmp_path: Path, text: str, place: str, problem: str) -> None:
    path = settings_file(tmp_path, text)
    with pytest.raises(SettingsError) as raised:
        load_settings({"config": path}, {})
    assert raised.value.place == path + place
    assert problem in raised.value.problem


def test_a_missing_file_names_the_flag_that_asked_for_it() -> None:
    with pytest.raises(SettingsError, match="--config: cannot read /nonexistent: No such file"):
        load_settings({"config": "/nonexistent"}, {})


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ServeSettings().data = Path("elsewhere")


@pytest.mark.parametrize("text", ["localhost:9001", "0.0.0.0:0", "[::1]:9001", "[fe80::1%eth0]:65535"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        (f"postgresql://ann:{PASSWORD}@db:5432/flyball", "postgresql://ann:***@db:5432/flyball"),
        (f"postgres://ann:{PASSWORD}@db/flyball", "postgres://ann:***@db/flyball"),
        (f"postgresql://ann:x@{PASSWORD}/y@db/flyball", "postgresql://ann:***@db/flyball"),
        (f"postgresql://ann:x?{PASSWORD}@db/flyball", "postgresql://ann:***@db/flyball"),
        (
            f"postgresql://db/flyball?user=ann&PassWord=x@{PASSWORD}&sslmode=require",
            "postgresql://db/flyball?user=ann&PassWord=***&sslmode=require",
        ),
        (f"postgresql://db/flyball?sslpassword={PASSWORD}", "postgresql://db/flyball?sslpassword=***"),
        ("postgresql://ann@db/flyball", "postgresql://ann@db/flyball"),
        ("postgresql://db:5432/flyball", "postgresql://db:5432/flyball"),
        ("postgresql:///flyball?host=/run/postgresql", "postgresql:///flyball?host=/run/postgresql"),
    ],
)
def test_the_redacted_store_shows_all_but_the_password(url: str, redacted: str) -> None:
    settings = load_settings({"store": url}, {})
    assert settings.store.url == url
    assert settings.store.redacted == str(settings.store) == redacted
    assert PASSWORD not in repr(settings)
    assert PASSWORD not in str(settings)


@pytest.mark.parametrize("store", [f"mysql://ann:{PASSWORD}@db/x", f"postgresql://ann:{PASSWORD}@[db/x"])
def test_a_bad_store_is_reported_without_its_password(store: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings({"store": store}, {})
    assert PASSWORD not in str(raised.value)
    assert raised.value.__cause__ is None
