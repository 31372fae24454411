/** What this browser verified: a badge for each part, and both values of each hash. */
import { Command, Id, plain } from '../../parts'
import { type Check, cardsState, countCards, mismatches, type State, stateOf, type Verification } from '../../verify'
import { useFormat } from '../../words'
import type { Call } from './data'
import style from './saw.module.css'
import { useWords } from './words'

export const ticks: Record<State, string> = { checking: '…', verified: '✔', mismatch: '✘', unchecked: '?' }

export function Tick({ state }: { state: State }) {
  const w = useWords()
  return (
    <span className={`${style.tick} ${style[state]}`} title={w[state]}>
      <span aria-hidden="true">{ticks[state]}</span>
      <span className="hidden">{w[state]}</span>
    </span>
  )
}

export function Badges({
  verification,
  open,
  setOpen,
  again,
}: {
  verification: Verification
  open: boolean
  setOpen: (open: boolean) => void
  again: () => void
}) {
  const w = useWords()
  const format = useFormat()
  const badges: [string, State][] = [
    [w.request, stateOf(verification.request)],
    [w.cards(format.number(verification.cards.size)), cardsState(verification)],
    [w.list, stateOf(verification.list)],
  ]
  const all = badges.map(([, state]) => state)
  return (
    <div className={style.badges} data-verified={all.every(state => state === 'verified')}>
      <button
        type="button"
        className={style.badge}
        aria-expanded={open}
        aria-controls="saw-verification"
        onClick={() => setOpen(!open)}
      >
        {badges.map(([title, state]) => (
          <span key={title} className={style.part}>
            <Tick state={state} /> {title}
          </span>
        ))}
        <span aria-hidden="true">{open ? '▾' : '▸'}</span>
      </button>
      {open && (
        <button type="button" onClick={again}>
          {w.again}
        </button>
      )}
    </div>
  )
}

export function Banner({ verification }: { verification: Verification }) {
  const w = useWords()
  const format = useFormat()
  const bad = mismatches(verification)
  if (bad.length === 0) return null
  const cards = bad.filter(check => check.what === 'card').length
  const what = [
    ...bad.filter(check => check.what !== 'card').map(check => (check.what === 'request' ? w.request : w.list)),
    ...(cards > 0 ? [w.cards(format.number(cards))] : []),
  ]
  return (
    <div className={style.banner} role="alert" data-state="mismatch">
      <strong>✘ {w.bannerTitle}</strong>
      <p>{w.banner(what.join(', '))}</p>
    </div>
  )
}

/** The list of messages is not that of the request, whatever the hashes say. */
export function Unlike() {
  const w = useWords()
  return (
    <div className={style.banner} role="alert" data-state="unlike">
      <strong>✘ {w.unlikeTitle}</strong>
      <p>{w.unlike}</p>
    </div>
  )
}

/** What checks is of another version than the server, so that it could not be loaded. */
export function Upgraded({ verification }: { verification: Verification }) {
  const w = useWords()
  if (verification.request?.why !== 'upgraded' && verification.list?.why !== 'upgraded') return null
  return (
    <div className={style.notice} role="alert">
      <h2>{w.upgraded}</h2>
      <p>{w.upgradedSays}</p>
      <button type="button" className="primary" onClick={() => location.reload()}>
        {w.reload}
      </button>
    </div>
  )
}

export function Details({ verification, call }: { verification: Verification; call: Call }) {
  const w = useWords()
  const format = useFormat()
  const count = countCards(verification)
  const others = [...verification.cards.values()].filter(check => check.ok !== true)
  others.sort((a, b) => Number(a.ok === null) - Number(b.ok === null))
  const shown = others.slice(0, 50)
  return (
    <section id="saw-verification" className={style.details} aria-label={w.details}>
      <div className={style.proofs}>
        <Proof title={w.request} says={w.algorithm.request} check={verification.request} />
        <Proof title={w.list} says={w.algorithm.list} check={verification.list} />
        <div>
          <h2>
            <Tick state={cardsState(verification)} /> {w.cards(format.number(verification.cards.size))}
          </h2>
          <p>
            {w.cardsSum(format.number(count.verified), format.number(count.mismatch), format.number(count.unchecked))}.{' '}
            {w.allCards}
          </p>
          <p className="muted">{w.algorithm.card}</p>
        </div>
      </div>
      {shown.length > 0 && (
        <div>
          <h3>{w.otherCards}</h3>
          <ul className={style.plainList}>
            {shown.map(check => (
              <li key={check.cardId}>
                <Tick state={stateOf(check)} /> <Id value={check.cardId!} />{' '}
                {check.why ? w.why[check.why] : <Values check={check} />} {check.detail && `(${plain(check.detail)})`}
              </li>
            ))}
          </ul>
          {others.length > shown.length && <p>{w.more(format.number(others.length - shown.length))}</p>}
        </div>
      )}
      <div className={style.terminal}>
        <span>{w.sameInTerminal}</span>
        <Command>{w.callCommand(call.turn, call.step)}</Command>
      </div>
      <p>{w.doesNotProve}</p>
    </section>
  )
}

function Proof({ title, says, check }: { title: string; says: string; check: Check | undefined }) {
  const w = useWords()
  return (
    <div>
      <h2>
        <Tick state={stateOf(check)} /> {title}
      </h2>
      {check && <Values check={check} />}
      {check?.why && (
        <p>
          {w.why[check.why]} {check.why !== 'not_renderable' && plain(check.detail)}
        </p>
      )}
      <p className="muted">{says}</p>
    </div>
  )
}

function Values({ check }: { check: Check }) {
  const w = useWords()
  return (
    <dl className={style.values}>
      <dt>{w.expected}</dt>
      <dd>
        <code>{check.expected ?? w.fromUnknown}</code>
      </dd>
      <dt>{w.computed}</dt>
      <dd>
        <code className={check.ok === false ? style.mismatch : undefined}>{check.computed ?? w.notComputed}</code>
      </dd>
    </dl>
  )
}
