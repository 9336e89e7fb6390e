"""Real local Kafka clusters: KRaft brokers run from jars, no Docker."""

from mirrorlake.lab.brokers import BrokerStatus, Lab, LabCluster
from mirrorlake.lab.settings import ClusterSpec, parse_spec

__all__ = ["BrokerStatus", "ClusterSpec", "Lab", "LabCluster", "parse_spec"]
