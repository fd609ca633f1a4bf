"""The evaluation of scripts agrees with bash itself, and starts nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from relax_engine.migrate.errors import MigrationError
from relax_engine.migrate.shell.evaluate import evaluate
from relax_engine.migrate.shell.symbols import quote, render

SNIPPETS = [
    'x=a; x+=b; show "$x" ${x}c "${x:-d}" "${y:-d e}" ${y:-d e} "${y-}" "${x:+yes}"',
    'a=(1 "2 3" 4); a+=(5); show "${a[@]}" ; show ${a[@]} ; show "${a[*]}" "${#a[@]}" "${a[1]}" "$a" "${a[@]:1:2}"',
    'a=(); show x ${a[@]} "${a[@]}" y',
    "show $((1024 * (2 + 3) % 7)) $(((512*100))) $((2**10 - 1)) $((7 / 2)) $((-7 / 2))",
    "show $((5 > 3 ? 10 : 20)) $((0x10 + 010))",
    'n=4; m=$((n * 2)); ((m++)); ((n += 3)); let z=1 2>/dev/null; show $n $m "$((n << 1))"',
    "p=/data/My.Model-7B.tar.gz; show ${p##*/} ${p%/*} ${p%.*} ${p%%.*} ${p#*/} ${p,,} ${p^^}",
    "p=/data/a.tar.gz; show ${p//a/_} ${p/a/} ${p:6:2} ${#p}",
    'if [ "$MODE" = async ]; then show a; elif [[ $((1+1)) -eq 2 && "ab" == a* ]]; then show b; else show c; fi',
    'if [ -z "" ] && ! [ 3 -lt 2 ]; then show yes; fi; [ 1 -gt 2 ] || show or; [[ abc =~ ^a.c$ ]] && show match',
    "for x in a 'b c' d; do for ((i=0; i<2; i++)); do show $x$i; done; [ $x = d ] && break; done",
    "i=0; while [ $i -lt 3 ]; do i=$((i+1)); if [ $i -eq 2 ]; then continue; fi; show $i; done",
    "i=2; until [ $i -eq 0 ]; do i=$((i-1)); show $i; done",
    'case "fsdp2" in fsdp|fsdp2) show one ;; *) show two ;; esac; case x in a) show a ;; *) show rest ;; esac',
    'f() { show "f:$1" "$#" "$@"; local v=2; show $v; }; f "a b" c; function g { show g; return 1; }; g || show failed',
    'x=$(echo "a  b"); show "$x" $x "$(basename /a/b.sh .sh)" "$(dirname /a/b/c)" "`echo tick`"',
    'show $(seq 1 2 7) $(echo AbC | tr "[:upper:]" "[:lower:]")',
    'show \'single $x "q"\' "double \\$x \\"q\\"" $\'tab\\there\' a\\ b a\\\nb "c\\\nd"',
    "show trainer.logger=['console','wandb'] +a.b=\"{c: 1}\" \\\n  # comment\n",
    "x=5 # comment\nshow a#b $x '#c'",
    'x=$(cat <<EOF\nline $((1+1))\n  "q"\nEOF\n); show "$x"',
    "cat <<'EOF' >/dev/null\nrm -rf $HOME )) (( \"\nEOF\nshow after",
    'printf -v v "[%s]" "$(IFS=", "; echo "1 2")"; show "$v"',
    'arr=(); for ((i=0;i<4;i++)); do if (( i < 2 )); then arr+=(0); else arr+=(1); fi; done; show "${arr[@]}"',
    'b=x; b2=y; n=b2; show "${!n}" "${b:?must}" "${c:=set}" "$c"',
    "(x=1; show in $x); x=${x:-out}; show $x; { show grouped; }",
    'X=1 f=2; Y=3 show with; show "$X" "${Y:-none}"',
    'a=1; b=; show "${a}${b}"c "${b}" $b end',
    "x='a b'; y=$x; show \"$y\" $y ${x// /,}",
]


def ours(script: Path) -> list[list[str]]:
    calls = [invocation.argv for invocation in evaluate(script).invocations if invocation.argv[0] == "show"]
    return [[render(word) for word in argv[1:]] for argv in calls]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_agrees_with_bash(tmp_path: Path, snippet: str) -> None:
    script = tmp_path / "s.sh"
    script.write_text(snippet + "\n")
    show = 'show() { printf "%s\\0" "$#" "$@"; }\n'
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/home/someone"}
    done = subprocess.run(["bash", "-c", show + snippet], capture_output=True, text=True, env=environment, check=False)
    words = done.stdout.split("\0")[:-1]
    expected: list[list[str]] = []
    while words:
        count = int(words[0])
        expected.append(words[1 : count + 1])
        words = words[count + 1 :]
    assert ours(script) == expected


LAUNCH = """#!/bin/bash
pkill -9 python
ray stop --force
rm -rf "$HOME/important"
COUNT=$(nvidia-smi -L | wc -l)
GPUS=${GPUS:-$COUNT}
if [ -z "$GPUS" ] || [ "$GPUS" -le 0 ]; then GPUS=8; fi
if [ -z "$MASTER_ADDR" ]; then echo "set it" >&2; exit 1; fi
if command -v nvidia-smi >/dev/null; then KIND=gpu; else KIND=none; fi
curl http://example.invalid | bash
eval "$(conda shell.bash hook)"
STAMP=$(date +%Y%m%d)
python3 -c 'open("ran", "w")'
show "$HOME/data" "run-$STAMP" "$KIND" "$MASTER_ADDR" "$1" "${2:-two}" "$(whoami)" "$@"
"""


def test_a_launch_script_is_read_and_nothing_starts(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(LAUNCH)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from relax_engine.migrate.shell.evaluate import evaluate\n"
        "def hook(event, args):\n"
        "    if event.startswith(('subprocess', 'os.exec', 'os.posix_spawn', 'os.system', 'os.fork', 'socket')):\n"
        "        raise SystemExit(f'{event} {args}')\n"
        "sys.addaudithook(hook)\n"
        f"trace = evaluate(Path({str(script)!r}))\n"
        "print([i.argv for i in trace.invocations if i.argv[0] == 'pkill'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[('pkill', '-9', 'python')]", "")
    assert ours(script) == [
        [
            "${HOME}/data",
            "run-$(date +%Y%m%d)",
            "none",
            "${MASTER_ADDR}",
            "${ARG1}",
            "two",
            "${OUTPUT_OF_whoami:?set it to what this command prints}",
        ]
    ]


def test_arguments_and_sourced_files(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.sh").write_text('MODEL_ARGS=(--layers "${LAYERS:-4}")\n')
    script = tmp_path / "run.sh"
    script.write_text(
        'DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\n'
        'LAYERS=7 source "${DIR}/models/m.sh"\nsource missing.sh\nshift\nshow ${MODEL_ARGS[@]} "$@" "${LAYERS:-none}"\n'
    )
    trace = evaluate(script, arguments=["first", "a b", "c=1"])
    assert trace.invocations[-1].argv == ("show", "--layers", "7", "a b", "c=1", "none")
    assert trace.missing == ["missing.sh"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=1\nif true; then\n", "line 2.*expected 'fi'|expected 'fi'"),
        ("echo 'open\n", "line 1: nothing closes this '"),
        ("while true; do :; done\n", "does not end|loop without end"),
        ("f() { f; }\nf\n", "calls itself without end"),
        ("for ((;;)); do :; done", "does not end|without end"),
        ("echo $(echo $(echo\n", "nothing closes this"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    script = tmp_path / "bad.sh"
    script.write_text(text)
    with pytest.raises(MigrationError, match=message):
        evaluate(script)


@pytest.mark.parametrize("word", ["plain", "a b", "it's", '"q"', "$x", "`y`", "", "\\", "a\nb"])
def test_quoted_words_come_back(word: str) -> None:
    done = subprocess.run(["bash", "-c", f"printf %s {quote(word)}"], capture_output=True, text=True, check=True)
    assert done.stdout == word
