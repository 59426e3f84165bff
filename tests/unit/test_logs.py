"""The log: one line per record, in the form that operators of istiod know (operations.md 14)."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from ambientd.debug.logs import configure_logs


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    """What is logged; afterwards everything is as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    structlog.reset_defaults()
    root.handlers, root.level = handlers, level


def test_text_is_tab_separated_with_fields_at_the_end(out: io.StringIO) -> None:
    configure_logs([("default", "info")], as_json=False, stream=out)
    structlog.get_logger("default").info("ready", port=15010, why="two words", kinds=["a", "b"], empty="")
    structlog.get_logger("ambientd.sources.files").warning("late\nrecord")
    first, second, rest = out.getvalue().split("\n", 2)
    assert first.split("\t")[1:] == ["info", "ready", "port=15010 why='two words' kinds='a; b' empty=''"]
    assert second.split("\t")[1:] == ["warn", "sources.files", "late"]
    assert rest == "record\n"
    time = first.split("\t")[0]
    assert time.endswith("Z")
    assert len(time) == len("2006-01-02T15:04:05.000000Z")


def test_json_is_one_object_per_line(out: io.StringIO) -> None:
    configure_logs([("default", "info")], as_json=True, stream=out)
    structlog.get_logger("ads").error("refused", msg="mine", reason=ValueError("no"))
    record = json.loads(out.getvalue())
    assert {key: value for key, value in record.items() if key != "time"} == {
        "level": "error",
        "scope": "ads",
        "msg": "refused",
        "msg_": "mine",
        "reason": "no",
    }


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ([("default", "info")], ["ads info", "files info"]),
        ([("default", "info"), ("ads", "debug")], ["ads debug", "ads info", "files info"]),
        ([("default", "info"), ("delta", "error")], ["files info"]),
        ([("default", "none"), ("sources", "info")], ["files info"]),
        ([("default", "info"), ("all", "error")], []),
    ],
)
def test_a_level_holds_for_a_scope_and_those_below_it(
    out: io.StringIO, levels: list[tuple[str, str]], said: list[str]
) -> None:
    configure_logs(levels, as_json=True, stream=out)
    ads, files = structlog.get_logger("ads"), structlog.get_logger("ambientd.sources.files")
    ads.debug("ads debug")
    ads.info("ads info")
    files.info("files info")
    assert [json.loads(line)["msg"] for line in out.getvalue().splitlines()] == said


def test_libraries_are_heard_from_warnings_on_in_the_same_form(out: io.StringIO) -> None:
    configure_logs([("default", "info")], as_json=True, stream=out)
    logging.getLogger("aiohttp.access").info("somebody asked")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("asyncio").exception("a callback failed: %s", "x")
    (record,) = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (record["scope"], record["level"], record["msg"]) == ("asyncio", "error", "a callback failed: x")
    assert record["stack"].endswith("ValueError: broken")
