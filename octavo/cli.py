"""The command ``octavo``: reads flags, calls the supervisor, the chat or top, turns errors into one line and a status.

Heavy modules are imported inside the commands so that ``--help`` answers at once and a bad flag is refused
before anything loads.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ipc.errors import ConfigError, OctavoError
from octavo.config_file import read_config_file
from octavo.options import SECTIONS, Option, build_serve_config, parse_text, serve_options

_USAGE_ERROR = 2


class _ServeCommand(click.Command):
    """A command with one help section for each config struct and flags that take several values."""

    def __init__(self, *arguments: Any, options: Mapping[str, Option], **keywords: Any) -> None:
        self._options = options
        keywords["params"] = [*keywords["params"], *(_click_option(option) for option in options.values())]
        super().__init__(*arguments, **keywords)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        single = {option.flag for option in self._options.values() if option.kind != "bool" and not option.is_list}
        several = {option.flag for option in self._options.values() if option.is_list}
        return super().parse_args(ctx, repeat_flags(args, several, single | {"--config"}))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records: dict[str, list[tuple[str, str]]] = {title: [] for title in (*SECTIONS.values(), "Other")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                option = self._options.get(parameter.name or "")
                records[SECTIONS[option.section] if option else "Other"].append(record)
        for title, rows in records.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def repeat_flags(arguments: Sequence[str], several: set[str], single: set[str]) -> list[str]:
    """``MODEL --name a b`` → ``MODEL --name a --name b``, as vLLM's users write it.

    Only after MODEL: before it, ``--name a MODEL`` means what it says. ``several`` are the flags that take several
    values, ``single`` those that take one.
    """
    result: list[str] = []
    repeated, is_value, is_model_seen = "", False, False
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*result, *arguments[position:]]
        if is_value:
            is_value = False
        elif argument.startswith("-") and argument != "-":
            repeated = argument if argument in several else ""
            is_value = argument in several or argument in single
        elif repeated and is_model_seen:
            result.append(repeated)
        else:
            is_model_seen = True
        result.append(argument)
    return result


def _click_option(option: Option) -> click.Option:
    """Its value is None, or () for a list, unless the flag was given; the shown default is the struct's."""
    if option.kind == "bool":
        name = option.flag.removeprefix("--")
        shown = {True: name, False: f"no-{name}", None: ""}[option.default]
        flags = [f"--{name}/--no-{name}", option.field]
        return click.Option(flags, default=None, help=_with_default(option.help, shown))
    if option.choices:
        metavar = "[" + "|".join(map(str, option.choices)) + "]"
    else:
        metavar = "TEXT" if option.kind in ("str", "list") else option.kind.removeprefix("list of ").upper()

    def parse(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is None:
            return value
        try:
            return tuple(parse_text(option, item) for item in value) if option.is_list else parse_text(option, value)
        except OctavoError as error:
            raise click.BadParameter(str(error), ctx, parameter) from None

    shown = "" if option.default in (None, ()) else str(option.default)
    return click.Option(
        [option.flag, option.field],
        type=str,
        metavar=metavar,
        callback=parse,
        multiple=option.is_list,
        help=_with_default(option.help, shown),
    )


def _with_default(text: str, shown: str) -> str:
    return f"{text}  [default: {shown}]" if shown else text


def _serve(model: str | None, config: Path | None, **given: Any) -> int:
    """Serve MODEL: a known name (smollm2), a model folder, a .gguf file or a hub id like owner/name.

    Whole numbers may have units: 32k is 32000, 32K is 32768, 2GiB and 2G are 2 x 1024^3. --config names a YAML
    file with the same names; the command line wins over it.
    """
    values = read_config_file(config) if config is not None else {}
    model = model if model is not None else values.get("model")
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    values.pop("model", None)
    values |= {name: value for name, value in given.items() if value is not None and value != ()}
    serve_config = build_serve_config(model, values)
    from octavo import supervisor

    status: int = supervisor.serve(serve_config)
    return status


def _chat(url: str, api_key: str | None, model: str | None, system: str | None) -> int:
    """Talk to a server in the terminal. Ctrl-C stops an answer, Ctrl-D leaves."""
    from octavo.chat import chat

    return chat(url, api_key=api_key, model=model, system=system)


def _top(url: str, api_key: str | None, interval: float, once: bool) -> int:
    """Watch what a server does: rates, latencies, KV cache, queue, and the requests in flight. Ctrl-C leaves.

    Works with vLLM's metrics too, without the requests.
    """
    from octavo.top import top

    return top(url, api_key=api_key, interval=interval, once=once)


def _list_cache() -> int:
    """Say what is kept, the last used first. In brackets: why `octavo cache prune` would remove it."""
    from octavo.cache import find_cache, list_entries

    cache = find_cache()
    entries = list_entries(cache)
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
        note = "".join(f"  {text}" for text in (entry.source, f"[{entry.useless}]" if entry.useless else "") if text)
        name = entry.path.relative_to(cache)
        print(f"{_mebibytes(entry.num_bytes):>12}  {used}  {entry.kind}  {name}{note}")
    print(f"{_mebibytes(sum(entry.num_bytes for entry in entries)):>12}  in {cache}")
    return 0


def _prune_cache(everything: bool) -> int:
    """Remove what this version of octavo would not use: packed weights and kernels of other versions, models whose
    source is gone, what was never finished. Engines that run are not disturbed.
    """
    from octavo.cache import find_cache, prune

    cache, num_bytes = find_cache(), 0
    for entry in prune(cache, everything=everything):
        num_bytes += entry.num_bytes
        reason = f"  [{entry.useless}]" if entry.useless else ""
        print(f"{_mebibytes(entry.num_bytes):>12}  {entry.kind}  {entry.path.relative_to(cache)}{reason}")
    print(f"{_mebibytes(num_bytes):>12}  removed from {cache}")
    return 0


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


def _new_key() -> int:
    """Print a new random key and what --api-keys-file holds instead of it."""
    from octavo.tenants_file import key_hash, new_key

    key = new_key()
    print(f"key:  {key}\nhash: {key_hash(key)}")
    return 0


def _hash_key() -> int:
    """Print what --api-keys-file holds instead of the key that is on standard input."""
    from octavo.tenants_file import key_hash

    print(key_hash(sys.stdin.readline().strip()))
    return 0


def _keys_group() -> click.Group:
    group = click.Group("keys", help="API keys and their hashes for --api-keys-file.")
    group.add_command(click.Command("new", callback=_new_key, help=_new_key.__doc__))
    group.add_command(click.Command("hash", callback=_hash_key, help=_hash_key.__doc__))
    return group


def _cache_group() -> click.Group:
    group = click.Group("cache", help="What octavo keeps on the disk to start faster.")
    everything = click.Option(["--all", "everything"], is_flag=True, help="Everything. Not while a server starts.")
    group.add_command(click.Command("list", callback=_list_cache, help=_list_cache.__doc__))
    group.add_command(click.Command("prune", callback=_prune_cache, help=_prune_cache.__doc__, params=[everything]))
    return group


def _command() -> click.Group:
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
    version = click.version_option(None, "--version", package_name="octavo", message="octavo %(version)s")
    group = click.Group("octavo", context_settings=settings, help="octavo serves language models.")
    group.add_command(
        _ServeCommand(
            "serve",
            callback=_serve,
            help=_serve.__doc__,
            options=serve_options(),
            params=[
                click.Argument(["model"], required=False, metavar="MODEL"),
                click.Option(["--config"], type=click.Path(path_type=Path), help="YAML file with these same names."),
            ],
        )
    )
    url = "http://127.0.0.1:8000"
    group.add_command(
        click.Command(
            "chat",
            callback=_chat,
            help=_chat.__doc__,
            params=[
                click.Option(["--url"], default=url, show_default=True, help="The server's address."),
                click.Option(["--api-key"], help="Key to send as Bearer token."),
                click.Option(["--model"], help="Name of the model; default: the server's first."),
                click.Option(["--system"], help="System prompt."),
            ],
        )
    )
    group.add_command(
        click.Command(
            "top",
            callback=_top,
            help=_top.__doc__,
            params=[
                click.Option(["--url"], default=url, show_default=True, help="The server's address."),
                click.Option(["--api-key"], help="Key to send as Bearer token, with the scopes metrics and admin."),
                click.Option(
                    ["--interval"],
                    type=click.FloatRange(min=0.1),
                    default=1.0,
                    show_default=True,
                    help="Seconds from one look to the next; rates and latencies are of that time.",
                ),
                click.Option(["--once"], is_flag=True, help="Print one frame, and end."),
            ],
        )
    )
    group.add_command(_cache_group())
    group.add_command(_keys_group())
    versioned: click.Group = version(group)
    return versioned


def main(arguments: list[str] | None = None) -> None:
    """The console script. Ends the process: 0, 2 for a bad flag, file or model, 130 after Ctrl-C, else 1."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """The exit status of one command line; every expected error is one line on stderr."""
    try:
        status = _command().main(arguments, prog_name="octavo", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return _USAGE_ERROR
    except click.ClickException as error:
        message = " ".join(error.format_message().split())
        print(f"octavo: {message}", file=sys.stderr)
        return _USAGE_ERROR
    except OctavoError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return _USAGE_ERROR if isinstance(error, ConfigError) else 1
    except (KeyboardInterrupt, click.Abort):
        return 130
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    main()
