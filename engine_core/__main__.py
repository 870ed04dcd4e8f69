"""``python -m engine_core``: one engine incarnation. Its configuration is the first line of standard input.

The rest of standard input is the death pipe: when it ends, so does this process, whatever it is doing. Ctrl-C and
SIGTERM reach the whole process group and are the supervisor's to answer, so they are ignored here.
"""

import os
import signal
import sys
from typing import NoReturn

import msgspec
import structlog

from engine_core.installation import check_kernels_package
from ipc.config import EngineConfig
from ipc.errors import ConfigError
from ipc.parent import die_with_parent, watch_parent
from observability.logging import configure

log = structlog.get_logger("octavo.engine")


def main() -> NoReturn:
    """Ends the process, with 0 after a drain and 2 for a configuration that cannot work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # torch's OpenMP threads must not spin while they wait: beside any other busy process a spinning pair is 15 times
    # slower than a sleeping one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    die_with_parent(sys.stdin.buffer)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    watch_parent(sys.stdin.buffer)
    configure(config.log_level, json=config.log_format == "json")
    try:
        serve(config)
    except ConfigError as error:
        sys.stderr.write(f"octavo: {error}\n")
        sys.stderr.flush()
        os._exit(2)
    except Exception:
        log.exception("engine failed")
        os._exit(1)  # without waiting for threads that may be in the middle of a step
    sys.stderr.flush()
    os._exit(0)  # standard input cannot be closed: a thread reads it until the parent is gone


def serve(config: EngineConfig) -> None:
    """Listen, load, announce, run until drained."""
    # Imported here: torch takes a second, and the death pipe must be watched before it.
    check_kernels_package()
    from engine_core.build import build_engine
    from engine_core.io import SocketThread
    from engine_core.progress import Progress
    from engine_core.statistics import StatsReporter

    progress = Progress()
    channel = SocketThread(config.transport, progress)
    engine = build_engine(config, channel)
    progress.watch(engine.core, engine.runner)
    channel.announce(engine.ready, engine.build_request)
    reporter = StatsReporter(channel, config.transport.incarnation)
    engine.core.run(reporter.on_step)
    channel.close()


if __name__ == "__main__":
    main()
