/** Verifies one model call, apart from the thread that draws. */
import { verify } from './check'
import { idOf, type Receipt } from './hash'
import { type Outline, outline } from './outline'
import type { CardFact, Check } from './result'
import { readSaid, type Said } from './said'
import { overHttp } from './server'

export interface Ask {
  project: string
  turn: string
  step: string
  receipt: Receipt
  sources: [string, string][]
}

export type Say =
  | { kind: 'checks'; checks: Check[] }
  | { kind: 'facts'; facts: CardFact[] }
  | { kind: 'bytes'; bytes: Uint8Array; lines: Outline; said: Said | null }
  | { kind: 'done' }

const say = (message: Say, transfer: Transferable[] = []) => postMessage(message, { transfer })

addEventListener('message', async ({ data }: MessageEvent<Ask>) => {
  const { project, turn, step, receipt, sources } = data
  const verified = verify(receipt, sources, overHttp(project, turn, step), {
    checks: checks => say({ kind: 'checks', checks }),
    facts: facts => say({ kind: 'facts', facts }),
    bytes: bytes => {
      const [lines, said] = [outline(bytes), readSaid(bytes, receipt, idOf)]
      say({ kind: 'bytes', bytes, lines, said }, [bytes.buffer as ArrayBuffer])
    },
  })
  try {
    await verified
  } catch (error) {
    // A value that is no hash, or an answer of another shape: what was not said yet cannot be checked.
    const failed = { computed: null, ok: null, why: 'failed' as const, detail: String(error) }
    say({ kind: 'checks', checks: [{ what: 'list', expected: receipt.cards_hash, ...failed }] })
  }
  say({ kind: 'done' })
})
