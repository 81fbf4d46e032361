"""-o and --columns: every listing command in every format."""

from __future__ import annotations

import csv
import io
import json
import threading

import pytest
from rich.cells import cell_len

import rmq
from rmq.cli_framework import output, tables, text
from rmq.cli_framework.message import tabulate
from rmq.cli_framework.output import csv_cell
from rmq.cli_framework.tables import cells, table_lines
from tests.cli.conftest import bury, ndjson
from tests.cli.test_help import ALL

# Every command called ls or groups, and others that list: its arguments, and how many records.
LISTINGS: dict[str, tuple[list[str], int | None]] = {
    "audit-trail": ([], None),
    "batch ls": ([], 1),
    "dlq groups": (["{topic}"], 2),
    "dlq ls": (["{topic}"], 2),
    "groups ls": (["{topic}-grouped"], 2),
    "job ls": ([], None),
    "outbox ls": (["--database", "sqlite:///{home}/outbox.sqlite"], 0),
    "peek": (["{topic}"], 2),
    "pending ls": (["{topic}"], 1),
    "query ls": (["{topic}"], 0),
    "schedule ls": (["{topic}"], 1),
    "sink ls": (["{topic}"], 0),
    "stats": (["{topic}", "--slots"], 1),
    "token ls": ([], None),
    "topic ls": ([], None),
    "worker ls": (["--topic", "{topic}"], 0),
}


@pytest.fixture
def client(server, name):
    """A client whose topics are this test's alone: some commands list all there are."""
    with rmq.Client(server.url, prefix=name) as made:
        yield made


@pytest.fixture
def run(run, name):
    return lambda *args, **how: run(*args, **{"RMQ_PREFIX": name} | how)


def store_follow_up(client, topic):
    """Ack a message whose follow-up is for a topic that does not accept sends."""
    target = f"{topic.name}-paused"
    client.topic(target).open()
    client.admin.topic_pause(target, verb="send")
    topic.send("with a follow-up")
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(1, wait=5)
        delivery.then(target, 1)
        delivery.ack()


@pytest.fixture
def listing(run, client, topic, tmp_path):
    grouped = client.topic(f"{topic.name}-grouped", groups=rmq.Groups())
    grouped.send_many([rmq.Outgoing(1, group=name) for name in "aab"])
    topic.every("report", every=3600, body={"=n": 1}).declare()
    bury(topic, "=HYPERLINK(1)", 'two,\n"lines"')
    client.batch("import-7", then=(topic, rmq.Outgoing(1))).open()
    store_follow_up(client, topic)
    topic.send({"n": 1}, headers={"tenant": "7"})
    topic.send("a,b")
    run("outbox", "create", "--database", f"sqlite:///{tmp_path}/outbox.sqlite")

    def arguments(command):
        words, count = LISTINGS[command]
        given = [word.format(topic=topic.name, home=tmp_path) for word in words]
        return [*command.split(), *given], count

    return arguments


def test_every_command_that_lists_is_tested_here():
    listed = {" ".join(path) for path in ALL if path[-1] in ("ls", "groups")}

    assert listed <= set(LISTINGS)


@pytest.mark.parametrize("command", LISTINGS)
def test_every_listing_in_every_format(run, listing, command):
    words, count = listing(command)

    shown = {each: run(*words, "-o", each) for each in ("table", "json", "ndjson", "csv")}

    assert [done.exit_code for done in shown.values()] == [0, 0, 0, 0], shown
    document = json.loads(shown["json"].stdout)
    lines = ndjson(shown["ndjson"].stdout)
    rows = list(csv.DictReader(io.StringIO(shown["csv"].stdout)))
    assert len(lines) == len(rows)
    if count is not None:
        assert len(lines) == count
        assert len(shown["table"].stdout.splitlines()) == (count + 1 if count else 0)
    records = document["slots"] if isinstance(document, dict) else document
    assert len(records) == len(lines)
    assert [list(each) for each in records] == [list(each) for each in lines]


def test_json_alone_is_what_it_was(run, listing, topic):
    as_ever = run("peek", topic.name, "--json").stdout
    assert ndjson(as_ever) == ndjson(run("peek", topic.name, "-o", "ndjson").stdout)
    assert json.loads(run("stats", topic.name, "--slots", "--json").stdout)["topic"] == topic.name


def test_columns_of_a_table(run, listing, topic):
    shown = run("dlq", "ls", topic.name, "--columns", "reason,id").stdout.splitlines()

    assert shown[0].split() == ["REASON", "ID"]
    assert all(line.startswith("failed") for line in shown[1:])
    unknown = run("dlq", "ls", topic.name, "--columns", "reason,color")
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "unknown column color; known columns are ID, DEAD-FOR" in unknown.stderr


def test_columns_of_csv_reach_inside(run, listing, topic):
    shown = run("peek", topic.name, "-o", "csv", "--columns", "headers.tenant,body.n,merge-key")

    assert shown.stdout.splitlines() == ["headers.tenant,body.n,merge_key", "7,1,", ",,"]
    unknown = run("peek", topic.name, "-o", "csv", "--columns", "color")
    assert unknown.exit_code == 2
    assert "unknown column color; known columns are id, queue" in unknown.stderr


def test_csv_holds_no_formula_and_one_record_on_a_line(run, listing, topic):
    shown = run("dlq", "ls", topic.name, "-o", "csv", "--columns", "failure.error").stdout

    assert shown.splitlines() == ["failure.error", "'=HYPERLINK(1)", '"two,\\n""lines"""']


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"), ("+1", "'+1"), ("-x", "'-x"), ("@sum", "'@sum"), ("\uff1d1", "'\uff1d1"),
        (-5, "-5"), (None, ""), (True, "true"), ({"a": "="}, '{"a":"="}'), ("\x1b[m", "\\x1b[m"),
        ("\t=1", "\\t=1"),
    ],
)  # fmt: skip
def test_a_cell_of_csv(value, cell):
    assert csv_cell(value) == cell


def test_bodies_of_bytes_are_one_column_of_csv(run, client, topic):
    client.topic(topic.name, codec="bytes").send(b"plain")
    client.topic(topic.name, codec="bytes").send(b"\xff\x00")
    client.topic(topic.name).send([1])

    shown = run("peek", topic.name, "-o", "csv", "--columns", "body").stdout

    assert shown.splitlines() == ["body", "plain", "0xff00", "[1]"]


def test_wrong_usage(run, topic):
    for words in (
        ["--json", "-o", "csv"], ["-o", "yaml"], ["-o", "ndjson", "--columns", "id"],
        ["--columns", ","],
    ):  # fmt: skip
        assert run("topic", "ls", *words).exit_code == 2
    error = run("topic", "show", f"{topic.name}-no", "-o", "json")
    assert (error.exit_code, json.loads(error.stderr)["error"]["exit"]) == (3, 3)
    assert "rmq: " in run("topic", "show", f"{topic.name}-no", "-o", "csv").stderr


def test_a_topic_is_one_row_of_csv(run, topic):
    (row,) = csv.DictReader(io.StringIO(run("topic", "show", topic.name, "-o", "csv").stdout))

    assert (row["topic"], row["slots"], row["dead"]) == (topic.name, "1", "0")


def test_rows_of_a_generator_are_printed_while_they_are_read():
    read = []

    def rows():
        for n in range(5000):
            read.append(n)
            yield [str(n), "x"]

    lines = table_lines([tables.Column("N", right=True), tables.Column("T")], rows())

    assert [next(lines), next(lines)] == ["  N  T", "  0  x"]
    assert len(read) == 1000
    assert list(lines)[-1] == "4999  x"


def letter(error):
    """A dead letter that was read."""
    failure = rmq.Failure("failed", 1, error)
    id = rmq.MessageId.parse("06gvgg09v400001cftsm90hr4s")
    return rmq.Message(
        id, "dead", 0, 1, None, None, None, None, None, {}, 1, None, None, failure, 0.0
    )


@pytest.mark.parametrize("text", ["plain", "Grüße, naïve", "cut…", "日本", "e\u0301", "\u0431"])
def test_a_cell_is_as_wide_as_a_terminal_shows_it(text):
    assert cells(text) == cell_len(text)


def test_dead_letters_are_printed_before_all_of_them_are_read(capsys):
    read = []

    def pages():
        for n in range(3):
            read.append(n)
            yield [letter(f"boom {n} {m}") for m in range(1000)]
            if n == 1:
                assert "boom 0 999" in capsys.readouterr().out

    tabulate(pages(), "dead")

    assert read == [0, 1, 2]
    assert "boom 2 999" in capsys.readouterr().out


def test_the_rows_of_some_moments_decide_on_columns_and_widths(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    short, long = letter("boom"), letter("boom " + "x" * 300)

    tabulate([[short], [], [long]], "dead")

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].index("BODY") > 100, "read at once, so both decide"
    assert lines[2].rstrip().endswith("…  null")
    tabulate([], "dead")
    assert capsys.readouterr().out == ""


def test_a_table_on_stderr_leaves_stdout_to_other_threads(capsys):
    """A worker prints its table while handlers run."""
    thread = threading.Thread(target=print, args=["of a handler"])

    with text.on_stderr():
        thread.start()
        thread.join()
        output.table([tables.Column("TOPIC")], [["orders"]])
        output.line({"n": 1})

    assert capsys.readouterr() == ("of a handler\n", 'TOPIC\norders\n{"n":1}\n')
