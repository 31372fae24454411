"""Writes the archive of a platform, the install script and the Homebrew formula. Script and formula know the SHA-256 of every archive."""

import hashlib
from pathlib import Path

from build import ROOT, SUMMARY, VERSION, Build, tar


def write(build: Build, out: Path, level: int) -> Path:
    name = f"waybill-{VERSION}-{build.platform.name}"
    files: dict[str, bytes | Path] = {f"{name}/{path}": file for path, file in build.beside().items()}
    files[f"{name}/waybill"] = build.binary
    to = out / f"{name}.tar.gz"
    tar(to, files, {f"{name}/waybill"}, level)
    return to


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def script(archives: dict[str, Path], url: str, out: Path) -> Path:
    """Fills in install.sh. The archives are by platform."""
    sums = "\n".join(f"{digest(path)}  {path.name}" for path in archives.values())
    text = (ROOT / "deploy/packages/install.sh").read_text()
    for mark, value in {"@URL@": url, "@VERSION@": VERSION, "@SUMS@": sums}.items():
        text = text.replace(mark, value)
    to = out / "install.sh"
    to.write_text(text)
    to.chmod(0o755)
    return to


def formula(archives: dict[str, Path], url: str, home: str, out: Path) -> Path:
    def source(name: str) -> str:
        path = archives[name]
        return f'      url "{url}/{path.name}"\n      sha256 "{digest(path)}"\n'

    def system(os: str, ours: str) -> str:
        cpus = {"on_arm": f"{ours}-aarch64", "on_intel": f"{ours}-x86_64"}
        parts = "".join(f"    {cpu} do\n{source(name)}    end\n" for cpu, name in cpus.items() if name in archives)
        return f"\n  {os} do\n{parts}  end\n" if parts else ""

    text = (
        f'class Waybill < Formula\n  desc "{SUMMARY.replace("A context", "Context")}"\n  homepage "{home}"\n'
        f'  version "{VERSION}"\n  license "Apache-2.0"\n{system("on_macos", "darwin")}{system("on_linux", "linux")}\n'
        '  def install\n    bin.install "waybill"\n    man1.install Dir["man/*.1"]\n'
        '    bash_completion.install "completions/waybill.bash" => "waybill"\n'
        '    zsh_completion.install "completions/waybill.zsh" => "_waybill"\n'
        '    fish_completion.install "completions/waybill.fish"\n  end\n\n'
        '  test do\n    assert_match version.to_s, shell_output("#{bin}/waybill version")\n  end\nend\n')
    to = out / "waybill.rb"
    to.write_text(text)
    return to
