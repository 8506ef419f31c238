"""Freed memory goes back to the system; each test in a process of its own, whose settings are not restored."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

RETURNED = "from grouptrail.runtime.memory import return_memory_sooner; return_memory_sooner()"


@pytest.mark.parametrize(("call", "found"), [("collect_garbage_sooner()", True), ("", False)])
def test_collect_garbage_sooner_frees_cyclic_garbage_with_many_live_objects(call: str, found: bool) -> None:
    """In a separate process, because the garbage collector's settings are not restored."""
    program = f"""
        import gc, weakref
        from grouptrail.runtime.memory import collect_garbage_sooner

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
    assert subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip() == str(found)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("call", [RETURNED, "pass"])
def test_return_memory_sooner_returns_what_arrow_threads_have_freed(call: str) -> None:
    """Without it some 80 MB stay."""
    program = f"""
        {call}
        import os, pyarrow as pa, pyarrow.compute as pc
        from concurrent.futures import ThreadPoolExecutor

        def resident() -> int:
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

        def work(_: int) -> None:
            [pc.add(column, number) for number in range(30)]

        column = pa.array(range(100_000))
        before = resident()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(8)))
        print(resident() - before)
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    # A session that an earlier test started in this process has set it for its workers.
    environ = {name: value for name, value in os.environ.items() if name != "MIMALLOC_PURGE_DELAY"}
    kept = int(subprocess.run(run, env=environ, check=True, capture_output=True, text=True).stdout)
    assert (kept < 20) is (call == RETURNED)


def test_run_command_calls_return_memory_sooner_before_arrow_is_loaded() -> None:
    """Arrow's allocator reads its settings only once."""
    program = """
        import os, sys
        from grouptrail.cli import main
        from grouptrail.runtime import memory

        def checked() -> None:
            assert "pyarrow" not in sys.modules
            raise SystemExit(7)

        memory.return_memory_sooner = checked
        sys.argv = ["grouptrail", "run"]
        main()
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(run, check=False, capture_output=True, text=True).returncode == 7
