"""`mirrorlake lab`: clusters to try things on, and just enough of a client to see what is in them."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from mirrorlake.errors import ClusterUnreachable, TopicMissing, UsageFault
from mirrorlake.lab.brokers import Lab, LabCluster, Say, silent
from mirrorlake.lab.processes import wait_until
from mirrorlake.lab.settings import ClusterSpec, at_ports, parse_ports, parse_spec, properties_text
from mirrorlake.lab.training import keep_classes

ANSWER_SECONDS = 20

app = typer.Typer(
    no_args_is_help=True,
    help="Real local Kafka clusters from jars, no Docker. They run until `lab down` and keep their data.",
)
# Results go to stdout, to be piped; what happens meanwhile goes to stderr.
out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, highlight=False)

Root = Annotated[
    Path | None,
    typer.Option(help="Where the clusters live.", show_default="$MIRRORLAKE_ROOT/lab, else .mirrorlake/lab"),
]
Name = Annotated[str, typer.Argument(help="A cluster that `lab up` made.")]
Topic = Annotated[str, typer.Argument(help="A topic of that cluster.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document per line, for programs.")]


@app.command()
def up(
    clusters: Annotated[
        list[str], typer.Argument(metavar="NAME[:PROTOCOL[:BROKERS]]", help="A cluster to start; several may be given.")
    ],
    port: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PORT", help="Port of a cluster's first broker, the others take the next; any free one else."
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew: drop the data of these clusters.")] = False,
    root: Root = None,
) -> None:
    """Start clusters and wait until every broker serves; those that run stay as they are.

    PROTOCOL is plaintext (the default), ssl, sasl_plaintext or sasl_ssl. With SASL the user is
    `$ConnectionString`, as on Azure Event Hubs. The first run fetches Kafka's jars.

    Example: mirrorlake lab up source target:plaintext:3 hubs:sasl_ssl --port source=9092
    """
    with _narrated("starting") as say:
        lab = _lab(root, say)
        made = lab.up(at_ports([_wish(lab, text) for text in clusters], parse_ports(port or [])), fresh)
    for cluster in made.values():
        out.print(f"{cluster.name}  {cluster.spec.protocol}  {cluster.bootstrap_servers}", markup=False)


@app.command()
def down(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]", help="A cluster to stop; all without.")] = None,
    root: Root = None,
) -> None:
    """Stop clusters, or all of them; their data stay for the next `lab up`."""
    with _narrated("stopping") as say:
        _lab(root, say).down(names or None)


@app.command()
def status(as_json: AsJson = False, root: Root = None) -> None:
    """Which brokers run, and where."""
    brokers = _lab(root).status()
    if as_json:
        for broker in brokers:
            print(json.dumps(dataclasses.asdict(broker)))
        return
    columns = ("cluster", "broker", "state", "protocol", "address", "pid")
    _print_table(columns, [[str(getattr(b, c) if getattr(b, c) is not None else "") for c in columns] for b in brokers])


@app.command()
def topics(
    name: Name,
    create: Annotated[str | None, typer.Option(metavar="TOPIC", help="Make this topic first.")] = None,
    partitions: Annotated[int, typer.Option(help="Of the topic that is made.")] = 1,
    config: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Setting of that topic.")] = None,
    root: Root = None,
) -> None:
    """List a cluster's topics, after making one with --create.

    Example: mirrorlake lab topics source --create orders --partitions 3 --config cleanup.policy=compact
    """
    cluster = _lab(root).cluster(name)
    with _kafka_faults(cluster):
        admin = AdminClient({**cluster.client_config(), **QUIET})
        if create:
            topic = NewTopic(create, partitions, min(3, cluster.spec.brokers), config=_pairs(config))
            admin.create_topics([topic])[create].result(ANSWER_SECONDS)
            # The controller has it; brokers tell of it a moment later.
            wait_until(lambda: create in admin.list_topics(timeout=ANSWER_SECONDS).topics, ANSWER_SECONDS)
        found = admin.list_topics(timeout=ANSWER_SECONDS).topics
    _print_table(("topic", "partitions"), [[t, str(len(found[t].partitions))] for t in sorted(found)])


@app.command()
def produce(
    name: Name,
    topic: Topic,
    count: Annotated[
        int | None, typer.Option(help="Make up this many records; else each line of stdin is a value.")
    ] = None,
    key_prefix: Annotated[str | None, typer.Option(help="Keys PREFIX0, PREFIX1, ...; else no keys.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="On every record; may repeat.")] = None,
    partition: Annotated[int | None, typer.Option(help="Else Kafka's partitioner chooses.")] = None,
    root: Root = None,
) -> None:
    """Send records, and wait until the cluster has them all.

    Example: seq 10 | mirrorlake lab produce source orders --key-prefix k --header origin=demo
    """
    cluster = _lab(root).cluster(name)
    values = (f"value-{n}" for n in range(count)) if count is not None else (line.rstrip("\n") for line in sys.stdin)
    placed: dict[str, Any] = {} if partition is None else {"partition": partition}
    headers = [(k, v.encode()) for k, v in (_pair(text) for text in header or [])]
    with _kafka_faults(cluster), _narrated("sending") as say:
        partitions = _require_topic(cluster, topic)
        if partition is not None and partition not in partitions:
            raise UsageFault(f"{topic} has no partition {partition}", f"0 to {partitions[-1]}")
        sent = _send(cluster, topic, values, key_prefix, {"headers": headers, **placed})
        say(f"{sent} records are in {topic} of {name}")


@app.command()
def consume(
    name: Name,
    topic: Topic,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Else only what comes from now on.")] = False,
    count: Annotated[int | None, typer.Option(help="End after so many; else Ctrl-C ends.")] = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Print records: partition, offset, timestamp, key, value, headers. Commits nothing, joins no group.

    Example: mirrorlake lab consume hubs orders --from-beginning --count 5 --json
    """
    cluster = _lab(root).cluster(name)
    with _kafka_faults(cluster):
        partitions = _require_topic(cluster, topic)
        start = OFFSET_BEGINNING if from_beginning else OFFSET_END
        # Without --count an interrupt is how this is meant to end.
        with nullcontext() if count is not None else suppress(KeyboardInterrupt):
            for message in _records(cluster, [TopicPartition(topic, p, start) for p in partitions], count):
                shown = described(message)
                print(json.dumps(shown) if as_json else _line(shown), flush=True)


@app.command()
def client_properties(name: Name, root: Root = None) -> None:
    """Print settings for Kafka's own tools.

    Example: mirrorlake lab client-properties hubs > hubs.properties, then kafka-topics.sh --list
    --bootstrap-server ... --command-config hubs.properties
    """
    print(properties_text(_lab(root).cluster(name).java_properties()), end="")


@app.command()
def classes() -> None:
    """Let Java keep the classes of a short relay, so that every later start is quicker; once on a machine.

    About half a minute and 100 MB, beside the jars. Instant where it was done. Worth a line in a container's recipe.
    """
    with _narrated("keeping classes") as say:
        kept = keep_classes(say)
    out.print(str(kept), markup=False)


# -- behind the commands

QUIET = {"log_level": 0}


def _lab(root: Path | None, say: Say = silent) -> Lab:
    return Lab(root or Path(os.environ.get("MIRRORLAKE_ROOT") or ".mirrorlake") / "lab", say)


def _wish(lab: Lab, text: str) -> ClusterSpec:
    """A bare name means that cluster as it was made."""
    return lab.cluster(text).spec if text in lab.names() else parse_spec(text)


@contextmanager
def _narrated(doing: str) -> Iterator[Say]:
    """A spinner on terminals, and a line for each step everywhere."""
    with err.status(doing):
        yield lambda text: err.print(text, markup=False)


@contextmanager
def _kafka_faults(cluster: LabCluster) -> Iterator[None]:
    """Kafka's errors in our words."""
    try:
        yield
    except KafkaException as fault:
        error: KafkaError = fault.args[0]
        what = f"lab cluster {cluster.name}: {error.str()}"
        # Negative codes are the client's own (no connection, no answer); the others are the broker's no.
        if error.code() < 0:
            raise ClusterUnreachable(what, "`mirrorlake lab status` says what runs") from None
        raise UsageFault(what) from None


def _require_topic(cluster: LabCluster, topic: str) -> list[int]:
    """The topic's partitions."""
    found = AdminClient({**cluster.client_config(), **QUIET}).list_topics(timeout=ANSWER_SECONDS).topics.get(topic)
    if found is None:
        next_step = f"mirrorlake lab topics {cluster.name} --create {topic}"
        raise TopicMissing(f"lab cluster {cluster.name} has no topic {topic!r}", next_step)
    return sorted(found.partitions)


def _send(
    cluster: LabCluster, topic: str, values: Iterator[str], key_prefix: str | None, fixed: Mapping[str, Any]
) -> int:
    producer = Producer({**cluster.client_config(), **QUIET, "linger.ms": 20, "enable.idempotence": True})
    refused: list[KafkaError] = []
    sent = 0
    for sent, value in enumerate(values, start=1):
        key = None if key_prefix is None else f"{key_prefix}{sent - 1}"
        producer.produce(topic, value=value, key=key, on_delivery=partial(_note, refused), **fixed)
        # The queue takes 100,000 records: past half of that, wait for room.
        while producer.poll(0) == 0 and len(producer) > 50_000:
            producer.poll(0.1)
    unsent = producer.flush(ANSWER_SECONDS)
    if refused:
        raise KafkaException(refused[0])
    if unsent:
        raise ClusterUnreachable(f"{unsent} of {sent} records did not arrive", "`mirrorlake lab status`")
    return sent


def _note(refused: list[KafkaError], error: KafkaError | None, _: Message) -> None:
    if error is not None:
        refused.append(error)


def _records(cluster: LabCluster, starts: list[TopicPartition], count: int | None) -> Iterator[Message]:
    settings = {"group.id": "mirrorlake-lab", "enable.auto.commit": False, "auto.offset.reset": "error"}
    consumer = Consumer({**cluster.client_config(), **QUIET, **settings})
    try:
        consumer.assign(starts)
        seen = 0
        while count is None or seen < count:
            if (message := consumer.poll(0.5)) is not None:
                if message.error():
                    raise KafkaException(message.error())
                seen += 1
                yield message
    finally:
        consumer.close()


def described(message: Message) -> dict[str, Any]:
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key": _text(message.key()),
        "value": _text(message.value()),
        "headers": [[key, _text(value)] for key, value in message.headers() or []],
    }


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="backslashreplace")


def _line(shown: Mapping[str, Any]) -> str:
    headers = ",".join(f"{key}={value}" for key, value in shown["headers"])
    return "\t".join([*(str(shown[k]) for k in ("partition", "offset", "timestamp", "key", "value")), headers])


def _pairs(texts: Sequence[str] | None) -> dict[str, str]:
    return dict(_pair(text) for text in texts or [])


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageFault(f"{text!r} is not KEY=VALUE")
    return key, value


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    out.print(table)
