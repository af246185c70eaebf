"""Points on a Dask cluster: what one process finds, though workers die; a scheduler that is gone is told."""

import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from threading import Thread

import pytest

from siliconloom.arch.errors import LoomError
from siliconloom.sweeps.run import run_sweep
from siliconloom.sweeps.store import Store
from tests.sweeps.small import without_times, write

SCHEDULER = """\
import asyncio
from distributed import Scheduler
async def serve():
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()
asyncio.run(serve())
"""
WORKER = """\
import asyncio, sys
from distributed import Worker
async def serve():
    async with Worker(sys.argv[1], nthreads=1, dashboard=False, heartbeat_interval="200ms") as worker:
        print("ready", flush=True)
        await worker.finished()
asyncio.run(serve())
"""
KEYS = {"memory.dram.bandwidth": {"from": "1 GB/s", "to": "60 GB/s", "step": "1 GB/s"}}


def started(code, *words):
    """A process that has said its first line, and the line."""
    made = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return made, made.stdout.readline().strip()


@pytest.fixture
def cluster():
    """Address of a scheduler, the scheduler, and its two workers."""
    scheduler, address = started(SCHEDULER)
    workers = [started(WORKER, address)[0] for _ in range(2)]
    yield address, scheduler, workers
    for process in (*workers, scheduler):
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing_and_nothing_is_twice(folder, cluster):
    address, _, workers = cluster
    path, killed = write(folder, keys=KEYS), []

    def kill_one(progress):
        if progress.done >= 5 and not killed:
            killed.append(progress.done)
            os.kill(workers[0].pid, signal.SIGKILL)

    found = run_sweep(path, "kept", scheduler=address, watcher=kill_one)
    assert 5 <= killed[0] < 60
    assert (found.counts.evaluated, found.counts.failed) == (60, 0)
    with Store("kept", write=False) as store:
        assert store.count() == 60
    assert without_times(found) == without_times(run_sweep(path, workers=1))


@pytest.mark.slow
def test_a_scheduler_that_goes_is_told_and_finished_points_are_kept(folder, cluster):
    address, scheduler, _ = cluster
    path, gone = write(folder, keys=KEYS), []

    def kill(progress):
        if progress.done >= 5 and not gone:
            gone.append(progress.done)
            scheduler.kill()

    with pytest.raises(LoomError, match=r"--scheduler tcp://.* is gone; \d+ finished points are kept in kept"):
        run_sweep(path, "kept", scheduler=address, watcher=kill)
    again = run_sweep(path, "kept", workers=1)
    assert again.counts.reused >= 5
    assert again.counts.reused + again.counts.evaluated == 60


@pytest.mark.parametrize("address", ["bogus", "tcp://10.0.0.1", ":", ""])
def test_an_address_without_a_port_is_told_as_such(folder, address):
    with pytest.raises(LoomError, match="--scheduler: expected HOST:PORT"):
        run_sweep(write(folder), "kept", scheduler=address)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "tls://127.0.0.1:9", "tcp://127.0.0.1:{banner}"])
def test_a_dead_scheduler_is_told_in_one_line(folder, monkeypatch, capfd, address):
    monkeypatch.setattr("siliconloom.sweeps.dask_cluster.CONNECT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as other:  # somebody else's, who speaks first
        Thread(target=greet, args=[other], daemon=True).start()
        address = address.replace("{banner}", str(other.getsockname()[1]))
        with pytest.raises(LoomError, match="does not answer") as caught:
            run_sweep(write(folder), "kept", scheduler=address)
    assert "\n" not in str(caught.value)
    for name in ("distributed.utils", "distributed.client", "distributed.comm.tcp", "tornado.application"):
        try:
            raise OSError("gone")
        except OSError:
            logging.getLogger(name).exception("told by Dask itself")
    assert "Traceback" not in capfd.readouterr().err


def greet(server):
    with suppress(OSError):
        while True:
            with server.accept()[0] as caller:
                caller.sendall(b"SSH-2.0-somebody_else\r\n")


def test_local_workers_and_a_cluster_are_not_both_asked(folder):
    with pytest.raises(LoomError, match="--workers"):
        run_sweep(write(folder), scheduler="tcp://127.0.0.1:9", workers=2)
