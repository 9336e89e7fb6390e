"""Mirrorlake: Kafka topics replicated through a Delta lakehouse.

The modules in the order in which a record meets them. A module imports only what stands before it;
`tests/unit/test_reading_order.py` holds us to that.
"""

__version__ = "0.1.0"

READING_ORDER = (
    "errors",  # what can go wrong; the type says whether trying again helps
    "failpoints",  # where tests let a process die
    "records",  # the words: topic-partitions, runs of offsets, table schemas
    "provenance",  # one header that says where a record came from
    "names",  # topic <-> table, source topic <-> target topic
    "properties",  # java.util.Properties, with lines
    "secrets",  # references to secrets, resolved last
    "stores",  # Java's truststores and keystores as PEM
    "config",  # YAML -> typed values, all faults at once
    "services",  # Event Hubs and Event Streams: limits, secrets, what an operator must do
    "jars",  # the Java side: what it needs and where it is kept
    "clusters",  # one cluster, two dialects: librdkafka and Spark's Java client
    "brokerapi",  # what a broker speaks, asked before any login
    "tls",  # a handshake looked at: chain, trust, and what is wrong
    "mm2keys",  # every key of MM2, and what becomes of it
    "mm2",  # an mm2.properties in our words, with a note on every key
    "strimzi",  # a KafkaMirrorMaker2 resource as the same settings
    "files",  # any of the three formats, told apart by content
    "kafka",  # what we ask of a cluster: topics, ends, ranges of records
    "heartbeats",  # signs of life, in MM2's format
    "consumers",  # a cluster's consumer groups, asked for at arm's length
    "mm2topics",  # MM2's checkpoints and offset syncs
    "topics",  # which topics a flow takes, and what they are called on its targets
    "configsync",  # a topic's configuration as on the source
    "acls",  # ACLs as on the source
    "missing",  # topics that a target lacks and only an operator can make
    "targets",  # what a target needs: looked at, planned, carried out
    "access",  # the least rights that a flow needs, and which of them we have
    "classes",  # what Java loaded, kept for its next start
    "session",  # the Spark session
    "commits",  # files that tasks wrote -> a commit, once for each transaction
    "tables",  # Delta tables: where they are, appending, reading, which files hold which offsets
    "lease",  # one writer for a flow
    "streams",  # a stream's identity: checkpoint, generation, transaction id move together
    "consume",  # Kafka -> Parquet, in the executors
    "bronze",  # Kafka -> Delta
    "ledger",  # what reached which target, as runs of offsets
    "offsets",  # the same record's offsets on both sides, exactly
    "produce",  # Arrow -> Kafka, in the executors
    "readers",  # bronze as the fan-out reads it: files, or Spark's rows
    "recovery",  # after any doubt: what of the target's tail is ours
    "rounds",  # what goes out next, and on which task
    "account",  # what one target has of one table, and what is entered of it
    "beginnings",  # where a target begins
    "doubts",  # whether a target has what the ledger says
    "fanout",  # Delta -> Kafka
    "audit",  # source, bronze and targets compared
    "throughput",  # how much each target got, and when
    "lag",  # how far behind, in SQL
    "crossing",  # from one cluster to another, along flows and against them
    "groups",  # consumer groups on both sides, and every decision about them
    "control",  # pause, resume, status
    "world",  # what a flow stands on: storage root, clusters, tables, Spark
    "writings",  # incidents and dead letters, as rows
    "strand",  # one bronze table of a flow: its topics, its targets, what table and ledger hold of it
    "admission",  # what a changed configuration or damaged state would break, refused
    "deletion",  # topics that the source has no more
    "inlet",  # the first leg, kept running
    "relay",  # one bronze table and its targets, running
    "upkeep",  # configurations and ACLs kept as on the source, heartbeats
    "groupkeeper",  # consumer groups kept in step
    "inspection",  # what storage and clusters say of a flow, without running it
    "links",  # the ways between clusters, as storage knows them
    "adopt",  # taking over from MM2
    "failover",  # consumers moved to the other side, and home again
    "repair",  # what a target misses, sent again from bronze
    "fitness",  # what flows would bring, against what a cluster takes
    "doctor",  # versions, reachability, limits, and the fix for each fault
    "runner",  # runs the chosen flows, from leases to a clean stop
    "lab",  # real local clusters
    "bench",  # MM2 and us, side by side
    "cli",  # the command line
)
