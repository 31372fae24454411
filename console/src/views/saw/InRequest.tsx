import { useMemo } from 'react'
import { type Said, type Standing, standing, standsTool, stateOf, type Verification } from '../../verify'
import type { SeenMessage } from './model'
import type { Tool } from './Rest'
import style from './saw.module.css'
import { useWords } from './words'

/** What the request says, read from the bytes that this browser has hashed. */
export interface Read {
  said: Said | null
  verification: Verification
}

/** Says whether a message stands in the request. The server renders it once more for the screen, so that alone says nothing. */
export function InRequest({ message, read }: { message: SeenMessage; read: Read }) {
  const { said } = read
  const found = useMemo(() => (said ? standing(message, said) : null), [message, said])
  return <Stands found={found} read={read} />
}

/** Says whether a tool stands in the request. */
export function ToolInRequest({ tool, n, read }: { tool: Tool; n: number; read: Read }) {
  const w = useWords()
  const { said } = read
  const stands = useMemo(() => (said ? standsTool(tool, said.tools[n]) : null), [tool, n, said])
  const found: Standing | null = stands === null ? null : { stands: stands ? 'here' : 'not', isThoughtUnsent: false }
  return <Stands found={found} read={read} here={w.toolStands} not={w.toolStandsNot} />
}

function Stands({ found, read, here, not }: { found: Standing | null; read: Read; here?: string; not?: string }) {
  const w = useWords()
  const { request } = read.verification
  const state = stateOf(request)
  if (state === 'checking') return <p className="muted">{w.inRequestChecking}</p>
  if (found === null) return <p className="muted">{w.inRequestUnknown}</p>
  const { stands, isThoughtUnsent } = found
  if (stands === 'not') return <p className={style.outsideNote}>{not ?? w.stands.not}</p>
  const says = stands === 'here' && here ? here : w.stands[stands]
  const isTicked = state === 'verified' && (stands === 'here' || stands === 'somewhere')
  return (
    <>
      <p className="muted">
        {isTicked && '✔ '}
        {says}
        {state !== 'verified' && ` ${request?.why === 'withheld' ? w.inRequestWithheld : w.inRequestUnverified}`}
      </p>
      {isThoughtUnsent && <p className={style.outsideNote}>{w.thoughtUnsent}</p>}
    </>
  )
}
