"""Freed memory goes back to the system; each test in a process of its own, whose settings are not restored."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

from grouptrail.memory import KEPT_WITHIN_BATCHES

KEPT = "from grouptrail.memory import keep_memory_within_batches; keep_memory_within_batches()"
JEMALLOC = "_RJEM_MALLOC_CONF"
RELEASED = "from grouptrail.memory import release_memory; release_memory()"


@pytest.mark.parametrize(("call", "is_freed"), [("collect_garbage_sooner()", True), ("", False)])
def test_collect_garbage_sooner_frees_cyclic_garbage_with_many_live_objects(call: str, is_freed: bool) -> None:
    """In a separate process, because the garbage collector's settings are not restored."""
    program = f"""
        import gc, weakref
        from grouptrail.memory import collect_garbage_sooner

        class Plan: pass

        imported = [[] for _ in range(1_000_000)]
        gc.collect()
        {call}
        plan = Plan()
        plan.itself, dropped = plan, weakref.ref(plan)
        gc.collect(1)  # it has been there for a while
        del plan
        batches = [[] for _ in range(200_000)]
        print(dropped() is None)
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip() == str(is_freed)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("release", [RELEASED, "pass"])
def test_release_memory_returns_what_threads_have_freed(release: str) -> None:
    """Of columns of a million rows, in numpy's and in Arrow's memory. Without it some hundred MB stay."""
    program = f"""
        {KEPT}
        import os, numpy as np, pyarrow as pa, pyarrow.compute as pc
        from concurrent.futures import ThreadPoolExecutor

        def resident() -> int:
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

        def work(_: int) -> None:
            [pc.add(pa.array(np.arange(1_000_000)), number) for number in range(10)]

        work(0)
        {RELEASED}
        before = resident()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(8)))
        {release}
        print(resident() - before)
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    # A session that an earlier test started in this process has set it for its workers.
    environ = {name: value for name, value in os.environ.items() if name != "MIMALLOC_PURGE_DELAY"}
    kept = int(subprocess.run(run, env=environ, check=True, capture_output=True, text=True).stdout)
    assert (kept < 20) is (release == RELEASED)


def test_keep_memory_within_batches_settings_are_those_that_delta_rs_allocator_uses() -> None:
    """As the allocator prints them. What they save differs from run to run; `make bench` and the soak show it."""
    program = f"""
        from grouptrail import memory

        memory.KEPT_WITHIN_BATCHES["{JEMALLOC}"] += ",stats_print:true"
        memory.keep_memory_within_batches()
        import deltalake
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    environ = {name: value for name, value in os.environ.items() if name != JEMALLOC}
    printed = subprocess.run(run, env=environ, check=True, capture_output=True, text=True).stderr
    assert "Invalid conf" not in printed
    used = dict(re.findall(r"opt\.(\w+): (\S+)", printed))
    wanted = dict(setting.split(":") for setting in KEPT_WITHIN_BATCHES[JEMALLOC].split(","))
    assert {name: used.get(name) for name in wanted} == wanted


def test_run_command_sets_memory_up_before_arrow_is_loaded() -> None:
    """Arrow's allocator reads its settings only once; the processes that Spark starts have their own."""
    program = """
        import os, sys
        from grouptrail import memory
        from grouptrail.cli import main

        def checked() -> None:
            assert "pyarrow" not in sys.modules
            set_up()
            assert "MIMALLOC_PURGE_DELAY" not in os.environ
            raise SystemExit(7)

        set_up, memory.keep_memory_within_batches = memory.keep_memory_within_batches, checked
        sys.argv = ["grouptrail", "run"]
        main()
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    environ = {name: value for name, value in os.environ.items() if name != "MIMALLOC_PURGE_DELAY"}
    process = subprocess.run(run, check=False, capture_output=True, text=True, env=environ)
    assert process.returncode == 7, process.stderr
