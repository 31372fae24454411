import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { outline } from '../../verify/outline'
import type { CardFact } from '../../verify/result'
import { readSaid } from '../../verify/said'
import { find, messageRanges, rangeAt, rowAt, rowsOf } from './bytes'
import {
  bandsOf,
  fromOf,
  handedAt,
  leftOutOf,
  letterOf,
  mergeSmall,
  reasonsOf,
  type Seen,
  sharesOf,
  stepLayer,
} from './model'

const bytesOf = (text: string) => new TextEncoder().encode(text)
const textOf = (bytes: Uint8Array) => new TextDecoder('utf-8', { fatal: true }).decode(bytes)

/** `S24 F131 H10@3 Q136 O40@1`: layer, tokens, and the place of its card. */
function seenOf(notation: string, omitted: string, nTokens = 0): { seen: Seen; facts: Map<string, CardFact> } {
  const layers: Record<string, string> = {
    S: 'system_prompt',
    F: 'framework__context',
    H: 'checkpoint_messages',
    Q: 'query',
    O: 'steps',
  }
  const facts = new Map<string, CardFact>()
  const card = (text: string, n: string) => {
    const [, letter, tokens, place] = /^(\w)(\d+)(?:@(\d+))?$/.exec(text)!
    const list = place === undefined ? 'named' : letter === 'O' ? 'steps' : 'history'
    const cardId = `${text}-${n}`
    const rest = { type: null, author: null, role: null, origin: null, createdAt: null, gone: null, writtenIn: null }
    facts.set(cardId, {
      cardId,
      list,
      boxId: 'b',
      place: place === undefined ? null : Number(place),
      nTokens: Number(tokens),
      ...rest,
    })
    return { layer: layers[letter!]!, tokens: Number(tokens), cardId }
  }
  const messages = notation.split(' ').map((text, n) => {
    const { layer, tokens, cardId } = card(text, 'm')
    const sources = [{ card_id: cardId, hash: '', origin: 'user' as const }]
    return { n: n + 1, layer, role: 'user' as const, n_tokens: tokens, sources, chars: 0 }
  })
  const left = omitted
    ? omitted.split(' ').map(text => ({ card_ids: [card(text, 'o').cardId], reason: 'budget' as const }))
    : []
  const receipt = { n_tokens: nTokens, blocks: [], framework_version: 'waybill-2' } as unknown as Seen['receipt']
  return { seen: { receipt, budget: 1_000, messages, omitted: left, tools: null }, facts }
}

const drawn = (seen: Seen, facts: Map<string, CardFact>) =>
  bandsOf(seen, facts)
    .map(({ kind, layer, tokens }) =>
      kind === 'format' ? `+${tokens}` : `${kind === 'omitted' ? '-' : ''}${letterOf(layer)}${tokens}`,
    )
    .join(' ')

describe('bands', () => {
  test('what was left out is drawn where it would have stood', () => {
    const check = (messages: string, omitted: string, expected: string) => {
      const { seen, facts } = seenOf(messages, omitted)
      expect(drawn(seen, facts)).toBe(expected)
    }
    check('S2 H5@3 Q1', '', 'S2 H5 Q1')
    check('S2 H5@3 H6@5 Q1', 'H1@1 H4@4', 'S2 -H1 H5 -H4 H6 Q1')
    check('S2 Q1', 'H1@1 H4@4', 'S2 -H1 -H4 Q1') // no history is left
    check('S2 H5@3 Q1 O4@2', 'H9@7 O3@1 O8@5', 'S2 H5 -H9 Q1 -O3 O4 -O8')
  })

  test('a card whose place is not known yet is not drawn', () => {
    const { seen, facts } = seenOf('S2 Q1', 'H1@1')
    facts.clear()
    expect(drawn(seen, facts)).toBe('S2 Q1')
    expect(leftOutOf(seen, facts)).toHaveLength(1)
  })

  test('what the format adds is a band of its own', () => {
    const { seen, facts } = seenOf('S2 Q1', '', 10)
    expect(drawn(seen, facts)).toBe('S2 Q1 +7')
  })

  test('a long context is a few hundred bands, and keeps its tokens', () => {
    const { seen, facts } = seenOf(
      ['S20', ...Array.from({ length: 20_000 }, (_, n) => `H50@${n + 1}`), 'Q9'].join(' '),
      '',
    )
    const merged = mergeSmall(bandsOf(seen, facts))
    expect(merged.length).toBeLessThan(300)
    expect(merged.reduce((sum, band) => sum + band.tokens, 0)).toBe(20 + 20_000 * 50 + 9)
    expect([merged[1]!.first, merged.at(-1)!.last]).toEqual([2, 20_002])
  })

  test('reasons are added up', () => {
    const { seen, facts } = seenOf('S2 Q1', 'H1@1 H4@4')
    expect(reasonsOf(leftOutOf(seen, facts))).toEqual([{ reason: 'budget', n: 2, tokens: 5 }])
  })

  test('brackets walk over layers', () => {
    const { seen } = seenOf('S2 F1 H1@1 H1@2 H1@3 Q1', '')
    expect([1, 2, 3, 4, 6].map(n => stepLayer(seen.messages, n, 1))).toEqual([2, 3, 6, 6, 6])
    expect([1, 2, 4, 6].map(n => stepLayer(seen.messages, n, -1))).toEqual([1, 1, 2, 3])
  })
})

describe('where from', () => {
  const handed = (part: number, from_place: number, n_cards: number) => {
    const rest = {
      arg_key: null,
      source_agent_id: 'a',
      source_profile: 'editor',
      source_box_id: null,
      upto: null,
      via: null,
    }
    return { part, from_place, n_cards, rule: 'box', tool_suffix: 'fork_join', created_at: '', ...rest }
  }
  const handovers = [handed(0, 1, 2), handed(1, 3, 10)]

  test('a place belongs to the part that put it there', () => {
    expect([0, 1, 2, 3, 12, 13].map(place => handedAt(place, handovers)?.part)).toEqual([
      undefined,
      0,
      0,
      1,
      1,
      undefined,
    ])
  })

  test('what no row says is unknown', () => {
    const { seen, facts } = seenOf('S2 F1 H5@2 H6@20 Q1@1 O4@2', '')
    const kinds = seen.messages.map(message => fromOf(message, seen.receipt, facts, handovers).kind)
    expect(kinds).toEqual(['profile', 'framework', 'handed', 'unknown', 'handed', 'own'])
    const shares = sharesOf(bandsOf(seen, facts), n => fromOf(seen.messages[n - 1]!, seen.receipt, facts, handovers))
    expect(shares.map(share => [share.from?.kind, share.tokens])).toEqual([
      ['profile', 2],
      ['framework', 1],
      ['handed', 5],
      ['unknown', 6],
      ['handed', 1],
      ['own', 4],
    ])
  })
})

describe('as sent', () => {
  const golden = join(import.meta.dirname, '../../../../crates/context/golden')
  const requests = readdirSync(golden).filter(name => name.endsWith('.json'))

  test.each(requests)('%s is cut into rows that give the same bytes', name => {
    const pretty = readFileSync(join(golden, name), 'utf8').replace(/\n\/\/ .*\n$/, '')
    for (const text of [pretty, JSON.stringify(JSON.parse(pretty))]) {
      const bytes = bytesOf(text)
      const lines = outline(bytes)
      const parsed = JSON.parse(text) as Record<string, unknown>
      for (const [key, value] of Object.entries(parsed)) {
        const found = lines.lists.get(key)?.map(({ from, upto }) => JSON.parse(textOf(bytes.subarray(from, upto))))
        expect(found).toEqual(Array.isArray(value) ? value : undefined)
      }
      for (const width of [1, 7, 80, 4_000]) {
        const rows = rowsOf(bytes, lines.starts, width)
        const shown = [...rows.keys()].slice(0, -1).map(row => textOf(bytes.subarray(rows[row], rows[row + 1])))
        expect(shown.join('')).toBe(text)
        expect(rowAt(rows, bytes.length - 1)).toBe(rows.length - 2)
      }
    }
  })

  test('a row never cuts a character', () => {
    const bytes = bytesOf('{"a":"面包😀é"}')
    for (const width of [1, 2, 3, 5]) {
      const rows = rowsOf(bytes, [], width)
      const shown = [...rows.keys()].slice(0, -1).map(row => textOf(bytes.subarray(rows[row], rows[row + 1])))
      expect(shown.join('')).toBe('{"a":"面包😀é"}')
    }
  })

  test('messages are found only in a format that writes one element for each', () => {
    const bytes = bytesOf('{"messages":[{"role":"system","content":"a"},{"content":"]}","role":"user"}],"model":"m"}')
    const lines = outline(bytes)
    const said = (adapter: string) => readSaid(bytes, { adapter } as Seen['receipt'], String)!
    const ranges = messageRanges(lines, said('openai_chat'))
    expect(ranges?.map(({ from, upto }) => textOf(bytes.subarray(from, upto)))).toEqual([
      '{"role":"system","content":"a"}',
      '{"content":"]}","role":"user"}',
    ])
    expect([0, 13, 43, 44, 45, 80, 999].map(at => rangeAt(ranges!, at))).toEqual([0, 1, 1, 0, 2, 0, 0])
    expect(messageRanges(lines, said('anthropic_messages'))).toBeNull()
    expect(messageRanges(outline(bytesOf('{}')), said('openai_chat'))).toBeNull()
  })

  test('search finds text as it reads and as JSON writes it', () => {
    const bytes = bytesOf('{"a":"say \\"hi\\" and hi","b":"面包"}')
    expect(find(bytes, 'hi')).toHaveLength(2)
    expect(find(bytes, '"hi"')).toHaveLength(1)
    expect(find(bytes, '面包')).toHaveLength(1)
    expect(find(bytes, 'none')).toEqual([])
    expect(find(bytes, '')).toEqual([])
    expect(find(bytesOf('aabaabaaab'), 'aab')).toEqual([0, 3, 7])
    expect(find(bytesOf('aaaa'), 'aa')).toEqual([0, 1, 2])
    expect(find(bytesOf('aaaa'), 'aaaaa')).toEqual([])
  })

  test('search is linear, whatever is searched for', () => {
    const bytes = bytesOf('='.repeat(4 << 20))
    const begun = performance.now()
    expect(find(bytes, `${'='.repeat(80_000)}"`)).toEqual([])
    expect(find(bytes, `${'='.repeat(1 << 20)}\n"end"`)).toEqual([])
    // Byte by byte it would take hours.
    expect(performance.now() - begun).toBeLessThan(20_000)
  })
})
