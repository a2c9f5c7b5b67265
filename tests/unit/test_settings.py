"""Where settings come from, which one wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import SettingsError
from cluster.settings import Settings, load_settings
from cluster.settings.names import BY_KEY, BY_VARIABLE, LEGACY, WITHOUT_EFFECT
from cluster.settings.report import rows
from cluster.settings.values import is_loopback, mask_url, split_listen


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def refusal(environ: dict[str, str] | None = None, file: Path | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ=environ or {}, file=file)
    return str(caught.value).splitlines()


def test_defaults() -> None:
    settings = load_settings(environ={})
    assert settings.auth_driver == "token"
    assert settings.worker_token is None
    assert (settings.worker_poll_timeout, settings.workflow_task_timeout) == (30, 60)
    assert (settings.activity_task_timeout, settings.history_page_size_default) == (300, 500)
    assert settings.worker_stale_after_seconds == 60
    assert settings.matching.sync_match_wait == 0.2
    assert settings.matching.max_concurrent_tasks_cap == 256
    assert settings.matching.heads_resync_interval == 300
    assert (settings.listen_host, settings.listen_port) == ("127.0.0.1", 8080)
    assert settings.server_id == settings.node_name


def test_defaults_that_follow_another_setting() -> None:
    settings = load_settings(
        environ={
            "DW_WORKER_POLL_TIMEOUT": "50",
            "DW_WORKFLOW_TASK_TIMEOUT": "7",
            "HEADRACE_NODE_NAME": "n1",
        }
    )
    assert settings.worker_stale_after_seconds == 100
    assert settings.query_task_timeout == 50
    assert settings.query_task_lease_timeout == 7
    assert settings.server_id == "n1"


def test_command_line_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(
        tmp_path / "headrace.toml",
        'listen = "127.0.0.1:1"\nnode_name = "file"\n\npartitions = 4\n[matching]\nstickyWait = "1s"\n',
    )
    settings = load_settings(
        {"listen": "127.0.0.1:3", "redis_url": None},
        file=file,
        environ={"HEADRACE_LISTEN": "127.0.0.1:2", "HEADRACE_NODE_NAME": "environment"},
    )
    assert (settings.listen, settings.node_name, settings.partitions) == ("127.0.0.1:3", "environment", 4)
    origins = [str(settings.origin(key)) for key in ("listen", "node_name", "partitions", "redis_url")]
    assert origins == ["--listen", "HEADRACE_NODE_NAME", f"{file}:4", "default"]
    assert str(settings.origin("matching.stickyWait")) == f"{file}:6"


def test_the_file_may_be_named_in_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path / "headrace.yaml", "partitions: 8\n")
    assert load_settings(environ={"HEADRACE_CONFIG": str(file)}).partitions == 8


@pytest.mark.parametrize(
    "text",
    [
        "matching: {dispatchWait: 3s, stickyWait: 250ms}",
        "matching.dispatchWait: 3s\nmatching.stickyWait: 250ms",
    ],
)
def test_matching_keys_of_a_yaml_file(tmp_path: Path, text: str) -> None:
    matching = load_settings(environ={}, file=write(tmp_path / "a.yml", text)).matching
    assert (matching.dispatch_wait, matching.sticky_wait) == (3.0, 0.25)


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    file = write(
        tmp_path / "headrace.yaml",
        "workr_token: a\npartitions: yes\nmatching:\n  stickWait: 1s\n  pingInterval: often\n",
    )
    lines = refusal({"DW_WORKER_POLL_TIMEOUT": "abc", "HEADRACE_DURABLE": "fsync", "DW_X": ""}, file)
    assert lines == [
        f"unknown setting workr_token in {file}:1 (did you mean worker_token?)",
        f"unknown setting matching.stickWait in {file}:4 (did you mean matching.stickyWait?)",
        "unknown variable HEADRACE_DURABLE (did you mean HEADRACE_DURABILITY?)",
        f"partitions = True in {file}:2: must be a number",
        "DW_WORKER_POLL_TIMEOUT='abc': must be a valid integer, unable to parse string as an integer",
        f"matching.pingInterval = 'often' in {file}:5: must be a duration such as 200ms, 10s or 5m",
    ]


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "partitions: 4\npartitions: 8\n")
    assert refusal(file=file) == [f"setting partitions is given twice, in {file}:1 and {file}:2"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "worker_token: [hunter2\n", "cannot parse the settings file"),
        ("a.toml", "worker_token = hunter2\n", "cannot parse the settings file"),
        ("a.yaml", "- hunter2\n", "cannot parse the settings file"),
        ("a.ini", "", "must end in .toml, .yaml or .yml"),
    ],
)
def test_files_that_cannot_be_parsed(tmp_path: Path, name: str, text: str, expected: str) -> None:
    lines = refusal(file=write(tmp_path / name, text))
    assert len(lines) == 1
    assert expected in lines[0]
    assert "hunter2" not in lines[0]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(file=tmp_path / "no.toml") == [
        f"cannot read the settings file {tmp_path}/no.toml: No such file or directory"
    ]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HEADRACE_DURABILITY", "replica:0"),
        ("HEADRACE_DURABILITY", "disk"),
        ("HEADRACE_LISTEN", "8080"),
        ("HEADRACE_LISTEN", "127.0.0.1:70000"),
        ("HEADRACE_PARTITIONS", "0"),
        ("HEADRACE_PARTITIONS", "1025"),
        ("HEADRACE_KEY_PREFIX", "a{b}"),
        ("HEADRACE_LOG_LEVEL", "loud"),
        ("REDIS_URL", "localhost:6379"),
        ("REDIS_URL", "http://localhost:6379"),
        ("DW_AUTH_DRIVER", "basic"),
        ("DW_AUTH_PROVIDER", "a.b"),
        ("DW_MODE", "embedded"),
        ("DW_DEFAULT_NAMESPACE", "a b"),
        ("DW_WORKER_POLL_TIMEOUT", "61"),
        ("DW_HISTORY_PAGE_SIZE_MAX", "1001"),
        ("DW_HISTORY_PAGE_SIZE_DEFAULT", "1000x"),
        ("DW_WORKER_TOKENS", "x"),
    ],
)
def test_bad_values_are_refused_and_named(variable: str, value: str) -> None:
    lines = refusal({variable: value})
    assert len(lines) == 1
    assert variable in lines[0]


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    assert (
        "stickyWait must not exceed"
        in refusal(file=write(tmp_path / "a.yaml", "matching: {stickyWait: 11s}"))[0]
    )
    assert "must not exceed DW_HISTORY" in refusal({"DW_HISTORY_PAGE_SIZE_MAX": "10"})[0]


@pytest.mark.parametrize(
    "line",
    [
        "syncMatchWait: 0s",
        "headsResyncInterval: -1s",
        "dispatchWait: 0s",
        "pingInterval: 0s",
        "maxStreams: 0",
        "maxConcurrentTasksCap: 0",
        "unsupportedTypeCacheEntries: -1",
        "stickyWait: -1s",
        "unheardOf: 1",
    ],
)
def test_r95_to_r98_matching_settings_that_mean_nothing_are_refused(tmp_path: Path, line: str) -> None:
    (refused,) = refusal(file=write(tmp_path / "a.yaml", f"matching:\n  {line}\n"))
    assert f"matching.{line.partition(':')[0]}" in refused


def test_r97_no_resync_interval_switches_it_off(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "matching: {headsResyncInterval: 0s}")
    assert load_settings(file=file, environ={}).matching.heads_resync_interval == 0


def test_numbers_that_are_clamped_or_mean_unlimited() -> None:
    settings = load_settings(
        environ={
            "DW_QUERY_TASK_MAX_PENDING_PER_QUEUE": "99999",
            "DW_METRICS_WORKFLOW_TASK_FAILURE_TYPE_LIMIT": "0",
            "DW_WORKFLOW_TASK_MAX_DISPATCHES_PER_MINUTE": "-1",
            "DW_WORKFLOW_TASK_MAX_ACTIVE_LEASES_PER_QUEUE": "25",
            "DW_TASK_QUEUE_ADMISSION_OVERRIDES": '{"*": {"workflow_tasks": {"max_active_leases": 50}}}',
        }
    )
    assert settings.query_task_max_pending_per_queue == 10_000
    assert settings.metrics_workflow_task_failure_type_limit == 1
    assert settings.workflow_task_max_dispatches_per_minute is None
    assert settings.workflow_task_max_active_leases_per_queue == 25
    assert settings.task_queue_admission_overrides["*"]["workflow_tasks"] == {"max_active_leases": 50}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DW_ACTIVITY_TASK_MAX_ACTIVE_LEASES_PER_QUEUE", "many"),
        ("DW_WORKFLOW_TASK_MAX_DISPATCHES_PER_MINUTE_PER_NAMESPACE", "-5"),
        ("DW_TASK_QUEUE_ADMISSION_OVERRIDES", "[1]"),
        ("DW_TASK_QUEUE_ADMISSION_OVERRIDES", "{"),
    ],
)
def test_admission_settings_that_mean_nothing_are_only_told(variable: str, value: str) -> None:
    settings = load_settings(environ={variable: value})
    assert not getattr(settings, BY_VARIABLE[variable].key)
    assert len(settings.warnings) == 1
    assert settings.warnings[0].startswith(f"{variable}={value!r} is not")
    nothing = "{ }" if variable.endswith("OVERRIDES") else "0"
    assert load_settings(environ={variable: nothing}).warnings == ()


def test_an_empty_variable_is_unset() -> None:
    settings = load_settings(environ={"DW_WORKER_TOKEN": "", "DW_AUTH_DRIVER": " ", "DW_NO_SUCH": ""})
    assert settings.worker_token is None
    assert settings.auth_driver == "token"


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    secret = write(tmp_path / "token", "s3cret\n")
    assert load_settings(environ={"DW_WORKER_TOKEN_FILE": str(secret)}).worker_token == "s3cret"
    assert refusal({"DW_WORKER_TOKEN_FILE": str(secret), "DW_WORKER_TOKEN": "x"}) == [
        "DW_WORKER_TOKEN and DW_WORKER_TOKEN_FILE are both set; keep one of them"
    ]
    assert "cannot read the file" in refusal({"DW_ADMIN_TOKEN_FILE": str(tmp_path / "no")})[0]
    assert "unknown variable DW_MODE_FILE" in refusal({"DW_MODE_FILE": str(secret)})[0]
    # Somebody meant to set it: without the refusal the role would have no credential, and nobody would know.
    empty = write(tmp_path / "empty", " \n")
    assert refusal({"DW_ADMIN_TOKEN_FILE": str(empty)}) == [
        f"DW_ADMIN_TOKEN_FILE={str(empty)!r}: the file is empty"
    ]


def test_unknown_dw_variables_may_be_allowed_others_not() -> None:
    settings = load_settings(environ={"DW_ENV_AUDIT_STRICT": "0", "DW_WORKR_TOKEN": "x"})
    assert settings.warnings == ("unknown variable DW_WORKR_TOKEN (did you mean DW_WORKER_TOKEN?)",)
    assert refusal({"DW_ENV_AUDIT_STRICT": "0", "HEADRACE_X": "1"}) == ["unknown variable HEADRACE_X"]


def test_variables_without_effect_and_of_the_client_are_accepted() -> None:
    load_settings(environ=dict.fromkeys([*WITHOUT_EFFECT, "DW_ENV", "DW_SERVER_URL", "REDIS_HOST"], "1"))


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080", "192.0.2.1:80", "example.org:80"])
def test_no_authentication_stays_on_this_machine(listen: str) -> None:
    lines = refusal({"DW_AUTH_DRIVER": "none", "HEADRACE_LISTEN": listen})
    assert len(lines) == 1
    assert "HEADRACE_FORCE_NO_AUTH=true" in lines[0]
    forced = {"DW_AUTH_DRIVER": "none", "HEADRACE_LISTEN": listen, "HEADRACE_FORCE_NO_AUTH": "true"}
    assert load_settings(environ=forced).listen == listen
    assert refusal({"DW_AUTH_DRIVER": "none", "HEADRACE_WORKER_LISTEN": listen}) == lines


def test_the_worker_listener_is_off_unless_it_has_an_address() -> None:
    assert load_settings(environ={}).worker_address is None
    assert load_settings(environ={"HEADRACE_WORKER_LISTEN": ""}).worker_address is None
    settings = load_settings(environ={"HEADRACE_WORKER_LISTEN": "[::1]:8081"})
    assert settings.worker_address == ("::1", 8081)
    assert "HEADRACE_WORKER_LISTEN='8081'" in refusal({"HEADRACE_WORKER_LISTEN": "8081"})[0]


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.8.8:1", "[::1]:80", "localhost:80"])
def test_no_authentication_on_loopback(listen: str) -> None:
    assert load_settings(environ={"DW_AUTH_DRIVER": "none", "HEADRACE_LISTEN": listen}).auth_driver == "none"


def test_rows_show_every_setting_and_no_secret() -> None:
    named = [name.variable for name in BY_KEY.values() if name.secret and name.variable]
    secrets = {variable: f"hunter2{number}" for number, variable in enumerate(named)}
    secrets["REDIS_URL"] = "rediss://me:hunter2@redis.example:7000/1"
    settings = load_settings(environ=secrets)
    table = rows(settings)
    assert [row.key for row in table] == list(BY_KEY)
    assert "hunter2" not in repr(table)
    assert "hunter2" not in repr(settings)
    assert table[0].value == "rediss://me:***@redis.example:7000/1"


def test_refused_values_show_no_secret() -> None:
    assert "hunter2" not in refusal({"REDIS_URL": "http://me:hunter2@x"})[0]


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().partitions = 3  # type: ignore[misc]


def test_every_variable_belongs_to_one_table() -> None:
    assert not set(BY_VARIABLE) & set(WITHOUT_EFFECT)
    assert not set(BY_VARIABLE) & set(LEGACY)
    assert all(name.text for name in BY_KEY.values())


@given(st.text(alphabet="abc.:[]0123456789 ", max_size=20))
def test_listen_addresses_are_split_or_refused(text: str) -> None:
    try:
        host, port = split_listen(text)
    except ValueError:
        return
    assert host
    assert 0 <= port <= 65535
    is_loopback(host)


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:p@h:1/0", "redis://:***@h:1/0"),
        ("redis://u:p@@h", "redis://u:***@h"),
        (
            "redis+sentinel://u:p@h:1,i:2/m/0?sentinel_password=q&x=1",
            "redis+sentinel://u:***@h:1,i:2/m/0?sentinel_password=***&x=1",
        ),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
    ],
)
def test_masked_urls(url: str, masked: str) -> None:
    assert mask_url(url) == masked


def test_old_names_are_understood_where_they_are_allowed() -> None:
    loose = {"DW_ENV_AUDIT_STRICT": "0"}
    old = {
        "WORKFLOW_SERVER_WORKER_POLL_TIMEOUT": "7",
        "WORKFLOW_SERVER_ID": "one",
        "ACTIVITY_TASK_TIMEOUT": "9",
    }
    settings = load_settings(environ=loose | old)
    assert (settings.worker_poll_timeout, settings.server_id, settings.activity_task_timeout) == (7, "one", 9)
    assert sorted(settings.warnings) == [
        "ACTIVITY_TASK_TIMEOUT is an old name: rename it to DW_ACTIVITY_TASK_TIMEOUT",
        "WORKFLOW_SERVER_ID is an old name: rename it to DW_SERVER_ID",
        "WORKFLOW_SERVER_WORKER_POLL_TIMEOUT is an old name: rename it to DW_WORKER_POLL_TIMEOUT",
    ]
    both = load_settings(environ=loose | old | {"DW_WORKER_POLL_TIMEOUT": "8"})
    assert both.worker_poll_timeout == 8
    (line,) = [text for text in refusal(old) if "POLL_TIMEOUT" in text]
    assert "rename it to DW_WORKER_POLL_TIMEOUT" in line


@pytest.mark.parametrize("kind", ["TOKEN", "SIGNATURE_KEY"])
def test_two_roles_cannot_share_a_secret(kind: str) -> None:
    environ = {f"DW_OPERATOR_{kind}": "same", f"DW_ADMIN_{kind}": "same"}
    text = "\n".join(refusal(environ))
    assert f"DW_OPERATOR_{kind} and DW_ADMIN_{kind} are the same" in text
    assert "same'" not in text.replace("are the same", "")
    shared = {"DW_AUTH_TOKEN": "x", "DW_SIGNATURE_KEY": "x", f"DW_ADMIN_{kind}": "x"}
    (warning,) = load_settings(environ=shared).warnings
    assert warning.endswith("who holds it is only admin")
