"""One command, measured: wall seconds from start to exit, CPU seconds, and the peak memory of its process tree."""
import os
import subprocess
import threading
import time

PAGE = os.sysconf("SC_PAGESIZE")


class Failed(Exception):
    """A measured command that failed, with the end of what it said."""


def tree(process):
    """The process and all below it."""
    found, waiting = [], [process]
    while waiting:
        one = waiting.pop()
        found.append(one)
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children") as file:
                    waiting.extend(file.read().split())
        except OSError:
            pass  # it has ended
    return found


def resident(process):
    """Bytes of memory that a process holds now."""
    try:
        with open(f"/proc/{process}/statm") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return 0


def measure(command, log, environment=None):
    """Runs a command and returns what it took.

    Memory is the larger of two: the kernel's own peak of the largest process, which misses nothing of that one, and the sum over
    the tree every 20 ms, which sees processes beside each other. The former begins with this program's own, some 20 MB.
    """
    os.sync()  # what others left to be written does not fall into this command's time
    others = busy_seconds()
    with open(log, "w") as out:
        began = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})})
        peak, ended = [0], threading.Event()

        def watch():
            while not ended.wait(0.02):
                peak[0] = max(peak[0], sum(map(resident, tree(child.pid))))

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
        ended.set()
        watcher.join()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        with open(log) as out:
            raise Failed(f"{' '.join(command)}\nended with {child.returncode}:\n{out.read()[-2000:]}")
    cpu = usage.ru_utime + usage.ru_stime
    return {
        "wall_s": round(wall, 4),
        "cpu_s": round(cpu, 3),
        "peak_mb": round(max(usage.ru_maxrss * 1024, peak[0]) / 1e6, 1),
        "others_cpu": round(max(0.0, busy_seconds() - others - cpu) / wall, 2),
    }


def busy_seconds():
    """CPU seconds that the whole machine has spent."""
    with open("/proc/stat") as file:
        ticks = [int(field) for field in file.readline().split()[1:]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
