#!/bin/sh
# Installs the program `waybill` for this machine. It checks the SHA-256 of what it downloads, and installs nothing if it cannot.
#   sh install.sh               into ~/.local/bin
#   sh install.sh --to FOLDER
#   sh install.sh --from URL    from another place, with the same checksums; a folder is file:///FOLDER
set -eu

url='@URL@'
version='@VERSION@'
sums='@SUMS@'

say() { printf '%s\n' "$*"; }
fail() {
  say "error: $*" >&2
  exit 1
}

main() {
  to=${HOME:-}/.local/bin
  while [ $# -gt 0 ]; do
    case $1 in
      --to) to=${2:?--to needs a folder} && shift 2 ;;
      --from) url=${2:?--from needs a URL} && shift 2 ;;
      *) fail "$1 is not an option; there are --to FOLDER and --from URL" ;;
    esac
  done
  case $(uname -s) in
    Linux) os=linux ;;
    Darwin) os=darwin ;;
    *) fail "there is no program for $(uname -s); on Windows, use WSL" ;;
  esac
  case $(uname -m) in
    x86_64 | amd64) arch=x86_64 ;;
    aarch64 | arm64) arch=aarch64 ;;
    *) fail "there is no program for $(uname -m)" ;;
  esac
  name=waybill-$version-$os-$arch
  expected=$(say "$sums" | sed -n "s/^\([0-9a-f]\{64\}\)  $name\.tar\.gz\$/\1/p")
  [ -n "$expected" ] || fail "this script has no checksum for $name.tar.gz, so it installs nothing"

  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  say "downloading $url/$name.tar.gz"
  download "$url/$name.tar.gz" "$folder/archive" || fail "$url/$name.tar.gz cannot be downloaded"
  actual=$(digest "$folder/archive")
  [ "$actual" = "$expected" ] || fail "$name.tar.gz has the SHA-256 $actual, and not $expected; nothing was installed"
  tar -xzf "$folder/archive" -C "$folder"
  "$folder/$name/waybill" --version >/dev/null || fail "the program does not run on this machine; nothing was installed"
  mkdir -p "$to"
  # In the same folder first: a rename replaces a program that runs.
  cp "$folder/$name/waybill" "$to/.waybill.new"
  chmod 755 "$to/.waybill.new"
  mv -f "$to/.waybill.new" "$to/waybill"
  say "installed waybill $version as $to/waybill"
  case :$PATH: in
    *":$to:"*) ;;
    *) say "add it to your PATH: export PATH=\"$to:\$PATH\"" ;;
  esac
}

download() {
  if command -v curl >/dev/null; then
    case $1 in
      https:* | file:*) curl -fsSL --proto '=https,file' --retry 3 -o "$2" "$1" ;;
      *) fail "$1: only https and file are allowed" ;;
    esac
  elif command -v wget >/dev/null; then
    case $1 in
      https:*) wget -q -O "$2" "$1" ;;
      *) fail "$1: without curl, only https is allowed" ;;
    esac
  else
    fail 'curl or wget is needed'
  fi
}

digest() {
  if command -v sha256sum >/dev/null; then
    sha256sum "$1" | cut -d ' ' -f 1
  elif command -v shasum >/dev/null; then
    shasum -a 256 "$1" | cut -d ' ' -f 1
  else
    fail 'sha256sum or shasum is needed to check the download; nothing was installed'
  fi
}

# At the end of the file: a script that was cut off while it was downloaded does nothing.
main "$@"
