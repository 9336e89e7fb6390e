"""Real local Kafka clusters: KRaft brokers run from jars, no Docker."""

from mirrorlake.lab.brokers import BrokerStatus, Lab, LabCluster
from mirrorlake.lab.mm2 import Mm2, mm2_properties
from mirrorlake.lab.settings import ClusterSpec, parse_spec

__all__ = ["BrokerStatus", "ClusterSpec", "Lab", "LabCluster", "Mm2", "mm2_properties", "parse_spec"]
