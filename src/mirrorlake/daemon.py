"""Spark's Python daemon with our modules loaded: the workers that it forks need not load them again, one by one."""

from pyspark.daemon import manager

from mirrorlake import consume, produce

__all__ = ["consume", "produce"]

if __name__ == "__main__":
    manager()
