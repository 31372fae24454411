/**
 * The request as bytes. Requests are one long line of JSON, so rows are cut from the bytes: where a message begins, and where a row is full.
 * Nothing is added and nothing is parsed into a tree.
 */

import type { Outline, Range, Said } from '../../verify'

/** The first byte of each row, and behind the last row the length. */
export type Rows = Uint32Array

const isInside = (bytes: Uint8Array, at: number) => at < bytes.length && (bytes[at]! & 0xc0) === 0x80

/** Cuts bytes into rows of at most `width` bytes, never inside a character. */
export function rowsOf(bytes: Uint8Array, starts: number[], width: number): Rows {
  const rows: number[] = [0]
  let next = 0
  for (let at = 0; at < bytes.length; ) {
    while (next < starts.length && starts[next]! <= at) next += 1
    let upto = Math.min(at + width, starts[next] ?? bytes.length, bytes.length)
    const newline = bytes.subarray(at, upto).indexOf(0x0a)
    if (newline >= 0) upto = at + newline + 1
    while (upto > at + 1 && isInside(bytes, upto)) upto -= 1
    // The row is narrower than the character: then it is wider.
    while (isInside(bytes, upto)) upto += 1
    rows.push(upto)
    at = upto
  }
  return Uint32Array.from(rows)
}

/** Returns the row that holds a byte. */
export function rowAt(rows: Rows, at: number): number {
  let [low, high] = [0, Math.max(0, rows.length - 2)]
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (rows[middle]! <= at) low = middle
    else high = middle - 1
  }
  return low
}

/** Finds a text, also as JSON writes it. At most so many places. It takes linear time, whatever is searched for. */
export function find(bytes: Uint8Array, text: string, most = 10_000): number[] {
  const places = new Set<number>()
  const forms = new Set([text, JSON.stringify(text).slice(1, -1)])
  for (const form of forms) findBytes(bytes, new TextEncoder().encode(form), places, most)
  return [...places].sort((a, b) => a - b)
}

/** Knuth, Morris and Pratt: no byte is looked at again. */
function findBytes(bytes: Uint8Array, wanted: Uint8Array, places: Set<number>, most: number) {
  if (wanted.length === 0 || wanted.length > bytes.length) return
  // How many bytes at its beginning are also those before each place.
  const back = new Uint32Array(wanted.length + 1)
  for (let n = 1, same = 0; n < wanted.length; n += 1) {
    while (same > 0 && wanted[n] !== wanted[same]) same = back[same]!
    if (wanted[n] === wanted[same]) same += 1
    back[n + 1] = same
  }
  let same = 0
  for (let at = 0; at < bytes.length && places.size < most; at += 1) {
    if (same === 0) {
      at = bytes.indexOf(wanted[0]!, at)
      if (at < 0) return
    }
    while (same > 0 && bytes[at] !== wanted[same]) same = back[same]!
    if (bytes[at] === wanted[same]) same += 1
    if (same === wanted.length) {
      places.add(at + 1 - same)
      same = back[same]!
    }
  }
}

/** Returns where each message stands in the request. Null if the format joins or splits messages. */
export function messageRanges({ lists }: Outline, said: Said): Range[] | null {
  const list = lists.get(said.format === 'openai_responses' ? 'input' : 'messages')
  return list && said.elements?.length === list.length ? list : null
}

/** Returns the number of the message that holds a byte, from 1. Zero if none does. */
export function rangeAt(ranges: Range[], at: number): number {
  let [low, high] = [0, ranges.length - 1]
  while (low <= high) {
    const middle = (low + high) >> 1
    const { from, upto } = ranges[middle]!
    if (at < from) high = middle - 1
    else if (at >= upto) low = middle + 1
    else return middle + 1
  }
  return 0
}
