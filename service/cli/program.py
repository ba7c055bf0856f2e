"""The program: its commands, each loaded when it is asked for, and how it ends."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click
from click.shell_completion import shell_complete

from service.cli import terminal
from service.cli.command import CONTEXT, heading, write_lines
from service.cli.exits import FAILURES, Exit, code_of, one_line
from service.system import resources

NAME = "headscope"
COMMANDS = {
    "serve": "Serve models, or exported artifacts, over HTTP.",
    "export": "Turn a checkpoint into an artifact, and verify it.",
    "verify": "Hold an artifact's ONNX graphs against PyTorch.",
    "bench": "Rank scored sentence pairs by artifacts, and time that.",
    "encode": "Encode the texts of files into one file, resumably.",
    "fetch": "Get a model's checkpoint and say where it is.",
}
"""What each command does; that of a name is `command` in the file of that name beside this one."""
EXAMPLES = """
headscope serve                                  the default model, on port 8000
headscope export --model ORG/NAME --out FOLDER   an artifact of a model of the hub
headscope serve --artifact FOLDER                that artifact
headscope serve --help                           every setting of the service
"""


class Program(click.Group):
    """The commands of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in the order of the table."""
        del ctx
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One command, whose file is loaded; None where there is none of that name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"service.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first argument; a wrong name is told with the likely one."""
        self.commands = dict.fromkeys(COMMANDS, click.Command(None))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table; no command is loaded for it."""
        ctx.color = terminal.colours()
        with formatter.section(heading("Commands")):
            formatter.write_dl([*COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples."""
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
            help="Show the version, and those of what computes.",
        )
    ],
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. What goes wrong is a line on standard error."""
    words = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if asked := terminal.completion():
        return shell_complete(program, {}, NAME, terminal.COMPLETION, asked)
    resources.rest_idle_threads()
    command = " ".join([NAME, *(word for word in words[:1] if word in COMMANDS)])
    try:
        code = _run(command, words)
        terminal.flush()
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
        hint = f"{command} --help shows what there is."
        terminal.fail(command, f"{_told(error)}\n{hint}")
        return Exit.WRONG_USE
    except BrokenPipeError:
        raise
    except FAILURES as error:
        terminal.fail(command, one_line(error))
        return code_of(error)


def _told(error: click.UsageError) -> str:
    """The message; of a wrong value its option, and the value, as where a variable has it."""
    missing = isinstance(error, click.MissingParameter)
    if isinstance(error, click.BadParameter) and error.param is not None and not missing:
        return f"{error.param.opts[0]} {error.message}"
    return error.format_message()
