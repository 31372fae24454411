"""Records a command in a terminal as an animated SVG: what was really on the screen, when.

usage: record.py OUTPUT.svg COMMAND…
needs: pyte (pip install pyte==0.8.2)
"""
import fcntl, os, pty, select, struct, sys, termios, time
from xml.sax.saxutils import escape

import pyte

COLUMNS, LINES = 110, 60
LINE, CHARACTER, MARGIN = 20, 8.4, 16
EVERY = 0.4  # seconds between two looks at the screen
PAUSE = 4  # seconds that the last picture stays

output, command = sys.argv[1], sys.argv[2:]
screen = pyte.Screen(COLUMNS, LINES)
stream = pyte.ByteStream(screen)
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(command[0], command)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

frames, begun, looked = [], time.monotonic(), -EVERY
while True:
    ready, _, _ = select.select([terminal], [], [], 0.05)
    if ready:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            piece = b""
        if not piece:
            break
        stream.feed(piece)
    now = time.monotonic() - begun
    if now - looked >= EVERY:
        looked = now
        shown = [line.rstrip() for line in screen.display]
        if not frames or frames[-1][1] != shown:
            frames.append((now, shown))
os.waitpid(pid, 0)
frames.append((time.monotonic() - begun, [line.rstrip() for line in screen.display]))

prompt = "$ waybill " + " ".join(f'"{word}"' if " " in word else word for word in command[1:])
length = frames[-1][0] + PAUSE
width, height = COLUMNS * CHARACTER + 2 * MARGIN, (LINES + 1) * LINE + 2 * MARGIN
marks = {"✔": "#4caf7d", "✘": "#e06c75", "●": "#e5c07b", "○": "#7f8796"}


def text(line, y):
    parts, run = [], ""
    for sign in line:
        if sign in marks:
            parts.append(escape(run))
            parts.append(f'<tspan fill="{marks[sign]}">{sign}</tspan>')
            run = ""
        else:
            run += sign
    return f'<text x="{MARGIN}" y="{y}" xml:space="preserve">{"".join(parts)}{escape(run)}</text>'


body, style = [], []
for n, (at, shown) in enumerate(frames):
    until = frames[n + 1][0] if n + 1 < len(frames) else length
    first, last = at / length * 100, until / length * 100
    begin = "0%{opacity:1}" if n == 0 else f"0%{{opacity:0}}{first:.2f}%{{opacity:0}}{first + 0.01:.2f}%{{opacity:1}}"
    end = "100%{opacity:1}" if n + 1 == len(frames) else f"{last:.2f}%{{opacity:1}}{last + 0.01:.2f}%{{opacity:0}}100%{{opacity:0}}"
    style.append(f"@keyframes f{n}{{{begin}{end}}}#f{n}{{animation:f{n} {length:.1f}s infinite step-end}}")
    # Who does not animate shows the last picture.
    hidden = "" if n + 1 == len(frames) else ' opacity="0"'
    lines = [text(line, MARGIN + (row + 2) * LINE) for row, line in enumerate(shown) if line]
    body.append(f'<g id="f{n}"{hidden}>{"".join(lines)}</g>')

with open(output, "w") as file:
    file.write(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}">'
        f"<title>{escape(prompt)}</title><style>text{{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#d7dae0}}{''.join(style)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#1e2127"/><text x="{MARGIN}" y="{MARGIN + LINE}">{escape(prompt)}</text>{"".join(body)}</svg>\n'
    )
