/** Verifies a model call in a worker while its page is shown. */
import { useCallback, useEffect, useMemo, useState } from 'react'
import { makeWorker } from '../worker'
import type { Receipt } from './hash'
import type { Outline } from './outline'
import { add, type CardFact, type Check, nothingYet, type Verification } from './result'
import type { Said } from './said'
import type { Ask, Say } from './verify.worker'
import address from './verify.worker?worker&url'

export interface Verifying {
  verification: Verification
  /** The cards that the call read, by id. A card in two lists has the place of the first. */
  facts: Map<string, CardFact>
  /** The request, once it is whole. */
  bytes: Uint8Array | null
  lines: Outline | null
  /** What the request says. Null if that cannot be read. */
  said: Said | null
  again(): void
}

interface Known {
  verification: Verification
  facts: Map<string, CardFact>
  bytes: Uint8Array | null
  lines: Outline | null
  said: Said | null
}

const start: Known = { verification: nothingYet, facts: new Map(), bytes: null, lines: null, said: null }

/** How often what the worker says is drawn, in milliseconds: a long call has many pages of cards. */
const PAUSE = 150

function takeIn(known: Known, said: Say): Known {
  switch (said.kind) {
    case 'checks':
      return { ...known, verification: add(known.verification, said.checks) }
    case 'facts': {
      const facts = new Map(known.facts)
      // A card of the history may be named as well, as the query is: where it stands in a box says more.
      for (const fact of said.facts) {
        const before = facts.get(fact.cardId)
        if (!before || before.place === null) facts.set(fact.cardId, fact)
      }
      return { ...known, facts }
    }
    case 'bytes':
      return { ...known, bytes: said.bytes, lines: said.lines, said: said.said }
    case 'done':
      return { ...known, verification: { ...known.verification, done: true } }
  }
}

export function useVerification(
  call: { project: string; turn: string; step: string },
  receipt: Receipt | undefined,
  sources: [string, string][],
): Verifying {
  const [known, setKnown] = useState(start)
  const [n, setN] = useState(0)
  const { project, turn, step } = call
  const hash = receipt && `${receipt.request_hash} ${receipt.cards_hash}`
  // biome-ignore lint/correctness/useExhaustiveDependencies: the hashes say all that matters of the receipt; `n` asks again
  useEffect(() => {
    setKnown(start)
    if (!receipt) return
    const worker = makeWorker(address)
    let waiting: Say[] = []
    let timer: ReturnType<typeof setTimeout> | undefined
    const flush = () => {
      const said = waiting
      waiting = []
      timer = undefined
      setKnown(known => said.reduce(takeIn, known))
    }
    worker.onmessage = ({ data }: MessageEvent<Say>) => {
      waiting.push(data)
      timer ??= setTimeout(flush, PAUSE)
    }
    let isOver = false
    worker.onerror = async event => {
      event.preventDefault()
      // A worker that could not be loaded says nothing.
      const why = event.message === undefined && (await isGone(address)) ? ('upgraded' as const) : ('failed' as const)
      if (isOver) return
      const failed = { computed: null, ok: null, why, detail: event.message ?? '' }
      const checks: Check[] = [
        { what: 'request', expected: receipt.request_hash, ...failed },
        { what: 'list', expected: receipt.cards_hash, ...failed },
      ]
      setKnown(known => takeIn(takeIn(known, { kind: 'checks', checks }), { kind: 'done' }))
    }
    worker.postMessage({ project, turn, step, receipt, sources } satisfies Ask)
    return () => {
      isOver = true
      clearTimeout(timer)
      worker.terminate()
    }
  }, [project, turn, step, hash, n])
  const again = useCallback(() => setN(n => n + 1), [])
  return useMemo(() => ({ ...known, again }), [known, again])
}

/** Checks whether the server no longer has a file: then it has been upgraded since this page was loaded. */
async function isGone(address: string): Promise<boolean> {
  try {
    const { status } = await fetch(address, { cache: 'no-store' })
    return status === 404
  } catch {
    return false
  }
}
