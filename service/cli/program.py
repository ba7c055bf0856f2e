"""Main program: lazily loaded commands, and handling of errors and exit codes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click
from click.shell_completion import shell_complete

from service.cli import terminal
from service.cli.command import CONTEXT, heading, write_lines
from service.cli.terminal import FAILURES, Exit, code_of, one_line
from service.system import resources

NAME = "headscope"
COMMANDS = {
    "serve": "Serve models, or exported artifacts, over HTTP.",
    "export": "Export a checkpoint as an artifact, and verify it.",
    "verify": "Compare an artifact's ONNX graphs with PyTorch.",
    "bench": "Score artifacts on sentence pairs, and time them.",
    "encode": "Encode the texts of files into one file, resumably.",
    "models": "List, load, swap and unload models of a running service.",
    "config": "Check a file of settings.",
    "fetch": "Fetch a model's checkpoint and print its folder.",
}
"""Name of each command → short help; `service/cli/NAME.py` defines it as `command`."""
EXAMPLES = """
headscope serve                                  the default model, on port 8000
headscope export --model ORG/NAME --out FOLDER   an artifact of a model of the hub
headscope serve --artifact FOLDER                that artifact
headscope serve --help                           every setting of the service
"""


class Program(click.Group):
    """Group of the commands in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of `COMMANDS`."""
        del ctx
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None for an unknown name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        if cmd_name == "serve":
            resources.begin_start()  # before its imports, which are the most of its start
        command: click.Command = importlib.import_module(f"service.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument; the error of a wrong name suggests another."""
        self.commands = dict.fromkeys(COMMANDS, click.Command(None))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands and their short help, without importing them."""
        ctx.color = terminal.colours()
        with formatter.section(heading("Commands")):
            formatter.write_dl([*COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        del ctx
        write_lines(formatter, "Examples", EXAMPLES)


def _show_versions(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from service.system.distribution import versions

        click.echo("\n".join(versions()))
        ctx.exit()


program = Program(
    NAME,
    context_settings=CONTEXT,
    help="Contextual embeddings and the attention weights of every head, over HTTP.",
    no_args_is_help=False,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_versions,
            help="Show the versions of Headscope and of its inference libraries.",
        )
    ],
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, report failures in a line on standard error, and return the exit code."""
    words = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if asked := terminal.completion():
        return shell_complete(program, {}, NAME, terminal.COMPLETION, asked)
    resources.rest_idle_threads()
    command = " ".join([NAME, *(word for word in words[:1] if word in COMMANDS)])
    try:
        code = _run(command, words)
        if sys.stdout is not None:  # a shell may close it: `>&-`
            sys.stdout.flush()
    except BrokenPipeError as error:
        if not terminal.reader_left():
            terminal.fail(command, one_line(error))
            return Exit.FAILED
        terminal.silence()
        return Exit.CLOSED_PIPE
    except KeyboardInterrupt:
        terminal.fail(command, "interrupted")
        return Exit.INTERRUPTED
    return code


def _run(command: str, words: list[str]) -> int:
    try:
        with program.make_context(NAME, words) as context:
            return int(program.invoke(context))
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        hint = f"see {command} --help"
        terminal.fail(command, f"{_message(error)}\n{hint}")
        return Exit.WRONG_USE
    except BrokenPipeError:
        raise
    except FAILURES as error:
        terminal.fail(command, one_line(error))
        return code_of(error)


def _message(error: click.UsageError) -> str:
    """Return an error's message; for an invalid value with its option, as for variables."""
    missing = isinstance(error, click.MissingParameter)
    if isinstance(error, click.BadParameter) and error.param is not None and not missing:
        return f"{error.param.opts[0]} {error.message}"
    return error.format_message()
