"""Spark's Python daemon with our modules loaded: the workers that it forks need not load them again, one by one.

It also spares them what Spark does around every task, which took most of the time of a small batch.
"""

import gc
import socket
import zipimport

from pyspark import daemon

from mirrorlake import consume, produce

__all__ = ["consume", "produce"]


def keep_list(_self: zipimport.zipimporter) -> None:
    """Before a task Python forgets what it knows of folders, for files that may have come since.

    A zip does not change, yet its whole list would be read again: a tenth of a second for PySpark's own.
    """


def hung_up(sock: socket.socket, authenticated: bool) -> int:
    """Java hangs up on a worker that it has only just asked for, where the job failed meanwhile: nothing to tell."""
    try:
        code: int = serve(sock, authenticated)
    except (EOFError, ConnectionError):
        return 1
    return code


serve = daemon.worker

if __name__ == "__main__":
    setattr(daemon, "worker", hung_up)  # noqa: B010
    setattr(zipimport.zipimporter, "invalidate_caches", keep_list)  # noqa: B010
    # After a task Spark lets the worker look for garbage: what stands before the fork never becomes any.
    gc.freeze()
    daemon.manager()
