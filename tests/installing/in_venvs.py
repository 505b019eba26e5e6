"""In venvs: the wheel is built and installed as a user would; core alone, then each extra alone; what held, out.

    python tests/installing/in_venvs.py                          # every extra
    python tests/installing/in_venvs.py --torch 2.9.1 core       # core dependencies alone, with that torch
    python tests/installing/in_venvs.py image video              # some

It is no test of pytest's, because it downloads torch (several GB with its CUDA libraries). One venv has torch and the
wheel; the venv of an extra sees that one through a .pth file, and has the extra's packages for its own. All are deleted
at the end. Exit status 1: something did not hold.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).with_name("jobs.py")
EXTRAS = ("image", "video", "remote", "stateful", "lightning", "prometheus", "accelerate", "transformers")
IMPORTS = 7
IMPORT = "import time, torch; begin = time.perf_counter(); import torchstage; print(time.perf_counter() - begin)"


def main() -> int:
    options = parsed()
    with tempfile.TemporaryDirectory(prefix="torchstage-venvs-", dir=options.folder) as name:
        folder = Path(name)
        wheel = built(folder / "wheel")
        base = made(folder / "base")
        install(base, f"torch=={options.torch}" if options.torch else "torch", str(wheel))
        held = core(base)
        for extra in options.what:
            if extra != "core":
                held &= alone(extra, base, folder, wheel)
    return 0 if held else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Install the wheel in new virtual environments, and use it.")
    parser.add_argument("what", nargs="*", choices=[*EXTRAS, "core", []], help="extras, or core; none: all of them")
    parser.add_argument("--torch", metavar="VERSION", help="default: the newest that pip takes")
    parser.add_argument("--folder", type=Path, help="for the venvs: default, the system's temporary folder")
    options = parser.parse_args()
    options.what = options.what or list(EXTRAS)
    return options


def built(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def made(folder: Path) -> Path:
    """Its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install(python, "--upgrade", "pip")  # old ones take what setuptools keeps for itself for an installed `packaging`
    return python


def install(python: Path, *what: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *what], check=True)


def core(python: Path) -> bool:
    """All that needs no extra, in an installation that has none."""
    versions = "import sys, torch, numpy; print(sys.version.split()[0], torch.__version__, numpy.__version__)"
    print(f"Python, torch, NumPy: {run(python, '-c', versions)[1].strip()}")
    run(python, "-c", "import torchstage")  # it is compiled now
    seconds = sorted(float(run(python, "-c", IMPORT)[1]) for _ in range(IMPORTS))
    print(f"import beyond torch's: {seconds[IMPORTS // 2]:.3f} s (median of {IMPORTS}, to {seconds[-1]:.3f} s)")
    tried = [
        told("core", python, str(JOBS), "core"),
        told("every extra missing", python, str(JOBS), "missing", *EXTRAS),
        told("--version", python, "-m", "torchstage", "--version"),
        told("--help", python, "-m", "torchstage", "--help"),
    ]
    return all(tried)


def alone(extra: str, base: Path, folder: Path, wheel: Path) -> bool:
    python = made(folder / extra)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own, others = (Path(run(each, "-c", where)[1].strip()) for each in (python, base))
    (own / "base.pth").write_text(f"{others}\n")
    install(python, f"{wheel}[{extra}]")
    return told(f"{extra} alone", python, str(JOBS), extra)


def told(what: str, python: Path, *words: str) -> bool:
    begin = time.perf_counter()
    code, output = run(python, *words)
    print(f"{what}: {'holds' if code == 0 else 'DOES NOT HOLD'} ({time.perf_counter() - begin:.1f} s)", flush=True)
    if code:
        print(output, flush=True)
    return code == 0


def run(python: Path, *words: str) -> tuple[int, str]:
    """In a folder where nothing of the project is, with nothing of it on the path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            [python, *words],
            cwd=elsewhere,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main())
