/** Where the parts of a request stand in its bytes, without parsing it into a tree. */
const QUOTE = 0x22
const BACKSLASH = 0x5c
const [OPEN, CLOSE, OPEN_LIST, CLOSE_LIST, COMMA, COLON] = [0x7b, 0x7d, 0x5b, 0x5d, 0x2c, 0x3a]

/** A message in the request: the bytes `from .. upto`. */
export interface Range {
  from: number
  upto: number
}

export interface Outline {
  /** Where the fields of the request begin, and the elements of its lists. */
  starts: number[]
  /** The elements of each list that is a field of the request, by its name. */
  lists: Map<string, Range[]>
}

/** Walks over the bytes once, without parsing: only the first two levels matter. */
export function outline(bytes: Uint8Array): Outline {
  const starts: number[] = []
  const lists = new Map<string, Range[]>()
  const stack: number[] = []
  let key = ''
  let list: Range[] | null = null
  let from = -1
  let at = 0
  const end = (upto: number) => {
    if (list && from >= 0) list.push({ from, upto })
    from = -1
  }
  while (at < bytes.length) {
    const byte = bytes[at]!
    if (byte === QUOTE) {
      const begin = at
      at += 1
      while (at < bytes.length && bytes[at] !== QUOTE) at += bytes[at] === BACKSLASH ? 2 : 1
      at += 1
      if (stack.length === 1 && stack[0] === OPEN) {
        let next = at
        while (next < bytes.length && bytes[next]! <= 0x20) next += 1
        if (bytes[next] === COLON) {
          key = new TextDecoder().decode(bytes.subarray(begin + 1, at - 1))
          starts.push(begin)
        }
      } else if (stack.length === 2 && list && from < 0) {
        from = begin
        starts.push(begin)
      }
      continue
    }
    if (byte === OPEN || byte === OPEN_LIST) {
      if (stack.length === 1 && byte === OPEN_LIST) {
        list = []
        lists.set(key, list)
      } else if (stack.length === 2 && list && from < 0) {
        from = at
        starts.push(at)
      }
      stack.push(byte)
    } else if (byte === CLOSE || byte === CLOSE_LIST) {
      stack.pop()
      if (stack.length === 2) end(at + 1)
      else if (stack.length === 1) {
        end(at)
        list = null
      }
    } else if (byte === COMMA && stack.length === 2) end(at)
    else if (stack.length === 2 && list && from < 0 && byte > 0x20) {
      from = at
      starts.push(at)
    }
    at += 1
  }
  return { starts, lists }
}
