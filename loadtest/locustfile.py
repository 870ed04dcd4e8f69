"""What locust is given (``locust -f loadtest/locustfile.py``, from the folder above): users, and what listens to it.

``python -m loadtest --help`` says every flag, ``--list`` the users. Importing this patches sockets.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any

import gevent
from locust import events, stats
from locust.runners import MasterRunner, WorkerRunner
from locust.user.task import filter_tasks_by_tags

from loadtest import dataset
from loadtest.mix import options, workers
from loadtest.mix.recorder import Recorder, keep_aside
from loadtest.mix.run import Run
from loadtest.mix.users import (
    ChatUser,
    ChoosyUser,
    DocumentUser,
    FloodingTenant,
    ImpatientUser,
    LongUser,
    ShortUser,
    StructuredUser,
)
from loadtest.sharegpt import DatasetError

__all__ = [
    "ChatUser",
    "ChoosyUser",
    "DocumentUser",
    "FloodingTenant",
    "ImpatientUser",
    "LongUser",
    "ShortUser",
    "StructuredUser",
]


def prepare(environment: Any, **_: Any) -> None:
    """Locust's ``init``: the command line is known, nobody has come yet."""
    parsed = environment.parsed_options
    choose_by_tags(environment)
    keep_aside(environment.stats)
    recorder = Recorder(environment.events.request.fire)
    environment.mix = Run(options.settings(parsed), make_dataset(parsed), recorder, parsed.report)
    if isinstance(environment.runner, MasterRunner):
        environment.mix.finish_workers = workers.lead(environment.runner, recorder)
    elif isinstance(environment.runner, WorkerRunner):
        workers.follow(environment.runner, recorder)
    environment.events.report_to_master.add_listener(recorder.report_to_master)
    environment.events.worker_report.add_listener(recorder.worker_report)
    environment.events.spawning_complete.add_listener(lambda **_: recorder.begin() if environment.reset_stats else None)
    # gevent counts --run-time from the time that its loop has seen last: before everything was imported.
    gevent.get_hub().loop.update_now()


def make_dataset(parsed: Any) -> dataset.Dataset:
    """What users say; or the end, where the file is no good."""
    try:
        return dataset.make(parsed.dataset or None, options.sizes(parsed))
    except DatasetError as error:
        sys.exit(f"loadtest: {error}")


def choose_by_tags(environment: Any) -> None:
    """Without the users that ``--tags`` leaves nothing to do: locust would start them, and they would fail."""
    wanted, unwanted = environment.parsed_options.tags, environment.parsed_options.exclude_tags
    for user_class in environment.user_classes:
        if not (wanted or unwanted):
            return
        logging.disable(logging.WARNING)  # locust warns of each class that is left out
        filter_tasks_by_tags(user_class, set(wanted) if wanted else None, set(unwanted) if unwanted else None)
        logging.disable(logging.NOTSET)
    environment.user_classes[:] = [user_class for user_class in environment.user_classes if user_class.tasks]
    if not environment.user_classes:
        sys.exit("loadtest: no user does anything that --tags and --exclude-tags leave")


def begin(environment: Any, **_: Any) -> None:
    """Locust's ``test_start``: its web page, or the master of this worker, may have changed the options."""
    run: Run = environment.mix
    parsed, runner = environment.parsed_options, environment.runner
    if not isinstance(runner, WorkerRunner):
        parsed.num_users_of_all = runner.target_user_count  # workers are sent what locust does not know itself
    process = max(0, getattr(runner, "worker_index", 0))
    run.begin(options.settings(parsed), make_dataset(parsed), parsed.num_users_of_all, process)
    if not isinstance(runner, MasterRunner):
        gevent.spawn(run.recorder.health.watch, run.is_over.is_set)
    if not isinstance(runner, WorkerRunner):
        gevent.spawn(run.say_progress)


def end(environment: Any, **_: Any) -> None:
    """Locust's ``test_stopping``: users are about to be stopped."""
    run: Run = environment.mix
    run.end()
    if run.finish_workers is not None:
        run.finish_workers(environment.stop_timeout)


def sum_up_for_page(environment: Any, **_: Any) -> None:
    """Locust's ``test_stop``: behind its web page the process goes on."""
    if environment.web_ui is not None:
        sum_up(environment)


def sum_up(environment: Any, **_: Any) -> None:
    """Locust's ``quitting``: worker processes have sent what they had. An interrupted run is to be stopped first."""
    runner = environment.runner
    if runner is None or isinstance(runner, WorkerRunner) or runner.state == "ready":
        return
    if runner.state not in ("stopping", "stopped", "cleanup"):
        runner.stop()
    run: Run = environment.mix
    let_tables_be_written(environment)
    summary = run.summarize(environment.host or first_host(environment), options.bounds(environment.parsed_options))
    if summary.broken:
        environment.process_exit_code = 1
    elif options.bounds(environment.parsed_options)["max_failures"] is not None and not runner.exceptions:
        environment.process_exit_code = environment.process_exit_code or 0  # so many failures are allowed


def let_tables_be_written(environment: Any) -> None:
    """Locust writes its CSV files every second, not at the end, and may try it once more when it has closed them."""
    if environment.parsed_options.csv_prefix:
        seconds, stats.CSV_STATS_INTERVAL_SEC = stats.CSV_STATS_INTERVAL_SEC, 86400
        gevent.sleep(seconds + 0.1)


def first_host(environment: Any) -> str | None:
    """Of the users, when none was given for all."""
    return next((user_class.host for user_class in environment.user_classes if user_class.host), None)


def say(environment: Any) -> Callable[..., None]:
    """Locust's ``quit``, behind its own tables."""

    def tell(**_: Any) -> None:
        for line in environment.mix.lines():
            logging.getLogger("locust.stats_logger").info(line)

    return tell


def listen() -> None:
    """To locust."""
    events.init_command_line_parser.add_listener(lambda parser, **_: options.add_options(parser))
    events.init.add_listener(prepare)
    events.init.add_listener(lambda environment, **_: events.quit.add_listener(say(environment)))
    events.test_start.add_listener(begin)
    events.test_stopping.add_listener(end)
    events.test_stop.add_listener(sum_up_for_page)
    events.quitting.add_listener(sum_up)


listen()
