/** Text of models and tools is hostile: characters that hide, reorder or imitate text are made visible. */

/** Control, format (zero-width, bidirectional, tags, soft hyphen), private and lone surrogate characters, and the blank of Braille; not tab, newline and carriage return before one. */
const hidden = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Default_Ignorable_Code_Point}\u2028\u2029\u2800]/gu
/** Joiners inside emoji are ordinary. */
const emoji = /\p{Extended_Pictographic}/u

/** An emoji, or the digit of a key, that asks for its coloured form. */
const coloured = /(\p{Extended_Pictographic}\ufe0f|[0-9#*]\ufe0f\u20e3)/u

export type Piece = string | { hidden: string }

/** Splits text into what is shown as it is, and characters that are shown by their names. */
export function visible(text: string): Piece[] {
  const pieces: Piece[] = []
  let from = 0
  for (const match of text.matchAll(hidden)) {
    const [at, one] = [match.index, match[0]]
    if (one === '\n' || one === '\t' || (one === '\r' && text[at + 1] === '\n')) continue
    if (one === '\ufe0f' && coloured.test(text.slice(Math.max(0, at - 2), at + 2))) continue
    if (one === '\u200d' && emoji.test(text.slice(Math.max(0, at - 4), at)) && emoji.test(text.slice(at + 1, at + 3)))
      continue
    if (at > from) pieces.push(text.slice(from, at))
    const code = one.codePointAt(0) ?? 0
    pieces.push({ hidden: `U+${code.toString(16).toUpperCase().padStart(4, '0')}` })
    from = at + one.length
  }
  if (from < text.length) pieces.push(text.slice(from))
  return pieces
}

/** Text of others in one line, where no marks can stand: hidden characters are named in brackets. */
export function plain(text: string | null | undefined): string {
  return visible(text ?? '')
    .map(piece => (typeof piece === 'string' ? piece : `[${piece.hidden}]`))
    .join('')
}
