/** One row of the transcript. */
import { Link } from '@tanstack/react-router'
import { memo, useState } from 'react'
import { Ago, Command, External, Id, plain, Status, Text } from '../../parts'
import { useFormat } from '../../words'
import { Request } from './Request'
import { type Card, type Child, callOf, fieldsOf, type Row, resultOf, type Step, type Writing } from './transcript'
import style from './turn.module.css'
import { Value } from './Value'
import { useWords } from './words'

/** So much of a text that is being written is in the page; the rest comes with the card. */
const TAIL = 6_000

export const Shown = memo(function Shown({
  project,
  turn,
  row,
  isOpen,
}: {
  project: string
  turn: string
  row: Row
  isOpen: boolean
}) {
  const w = useWords()
  const format = useFormat()
  switch (row.kind) {
    case 'question':
      return (
        <Block title={w.question} card={row.card} look="question">
          <Content card={row.card} />
        </Block>
      )
    case 'step':
      return (
        <header className={style.step}>
          <h2>{w.step(row.n)}</h2>
          {row.taken && (
            <span className="muted">
              <Ago time={row.taken.created_at} />
            </span>
          )}
          {row.taken && (
            <span className={style.inline}>
              {row.taken.model && (
                <span className="muted">
                  {plain(row.taken.provider)} {plain(row.taken.model)}
                </span>
              )}
              <Figures step={row.taken} />
            </span>
          )}
          {row.taken && <Marks step={row.taken} />}
          {row.taken?.model && (
            <Link
              className="button"
              to="/$project/turns/$turn/steps/$step"
              params={{ project, turn, step: row.taken.step_id }}
              search={{}}
            >
              {w.saw}
            </Link>
          )}
        </header>
      )
    case 'said':
      return (
        <Block card={row.card} look="said">
          <Content card={row.card} />
        </Block>
      )
    case 'reasoning':
      return (
        <details className={style.reasoning}>
          <summary>{w.reasoning(format.number(row.card.n_tokens ?? 0))}</summary>
          <Content card={row.card} />
        </details>
      )
    case 'reminder':
      return (
        <Block title={w.reminder} card={row.card} look="reminder">
          <Content card={row.card} />
        </Block>
      )
    case 'deliverable':
      return (
        <Block title={w.deliverable} card={row.card} look="deliverable">
          <Content card={row.card} />
        </Block>
      )
    case 'other':
      return (
        <Block title={plain(row.card.metadata?.type)} card={row.card} look="other">
          <Content card={row.card} />
        </Block>
      )
    case 'gone':
      return (
        <section className={style.gone} data-state="gone">
          {w.goneCard}: {w.why[row.card.why ?? ''] ?? plain(row.card.why ?? '–')}
          {row.card.reason && <Text>{row.card.reason}</Text>}
          {row.card.gone_at && <Ago time={row.card.gone_at} />} <Id value={row.card.card_id} />
          {row.card.hash && (
            <>
              {w.hash} <Id value={row.card.hash} />
            </>
          )}
        </section>
      )
    case 'call':
      return <Call project={project} row={row} isOpen={isOpen} />
    case 'lost':
      return (
        <section className={style.lost}>
          <span aria-hidden="true">✗</span> {w.lost} {row.wentOn && w.wentOn}{' '}
          {row.toMs !== null && w.lostFor(format.took(row.toMs - row.fromMs))} <Ago time={row.fromMs} />
        </section>
      )
    case 'writing':
      return <Stream pieces={row.pieces} />
    case 'end':
      return (
        <footer className={style.end}>
          {w.ended}: <Status status={row.turn.status} />
          {row.turn.finished_at && <Ago time={row.turn.finished_at} />}
          {row.turn.reason && <Text>{row.turn.reason}</Text>}
          <Command>{`waybill turn show ${row.turn.agent_turn_id}`}</Command>
        </footer>
      )
  }
})

function Block({
  title,
  card,
  look,
  children,
}: {
  title?: string
  card: Card
  look: string
  children: React.ReactNode
}) {
  return (
    <section className={style.block} data-look={look}>
      {(title || card.origin === 'external') && (
        <div className={style.label}>
          {title} {card.origin === 'external' && <External />}
        </div>
      )}
      {children}
    </section>
  )
}

function Content({ card }: { card: Card }) {
  return card.state === 'gone' ? <p className="muted">{plain(card.why ?? '–')}</p> : <Value value={card.content} />
}

function Call({ project, row, isOpen }: { project: string; row: Extract<Row, { kind: 'call' }>; isOpen: boolean }) {
  const w = useWords()
  const format = useFormat()
  const call = callOf(row.card)
  const result = row.result && row.result.state === 'live' ? resultOf(row.result) : null
  const isBad = result !== null && result.status !== '' && result.status !== 'success'
  const fields = fieldsOf(call.arguments)
  return (
    <section className={style.block} data-look="call">
      <div className={style.label}>
        <span aria-hidden="true">→</span> <code>{plain(call.name)}</code>
        {row.tookMs !== null && <span className="muted">{format.took(row.tookMs)}</span>}
        {row.card.origin === 'external' && <External />}
      </div>
      {fields?.length === 0 ? (
        <p className="muted">{w.noArguments}</p>
      ) : call.name === 'ask_person' && row.asks ? (
        // The request below says the same.
        <details className={style.folded}>
          <summary>{w.arguments}</summary>
          <Value value={call.arguments} />
        </details>
      ) : (
        <Value value={call.arguments} />
      )}
      {row.asks && row.card.tool_call_id && <Request project={project} call={row.card.tool_call_id} />}
      {row.children.length > 0 && <Children project={project} of={row.children} />}
      <div className={`${style.label} ${style.result}`}>
        {row.result ? (
          <>
            <span aria-hidden="true">←</span> {w.result} {row.result.origin === 'external' && <External />}{' '}
            {isBad && <span className={style.wrong}>✗ {plain(result?.status)}</span>}
          </>
        ) : (
          <span className="muted">{isOpen ? w.pending : w.neverAnswered}</span>
        )}
      </div>
      {row.result &&
        (result ? (
          <Value value={result.result} />
        ) : (
          <p className="muted">{w.why[row.result.why ?? ''] ?? w.goneCard}</p>
        ))}
    </section>
  )
}

const FEW = 12

function Children({ project, of }: { project: string; of: Child[] }) {
  const w = useWords()
  const format = useFormat()
  const [all, setAll] = useState(of.length <= FEW)
  return (
    <div className={style.children}>
      <span>{w.children(of.length)}</span>
      <ul>
        {(all ? of : of.slice(0, FEW)).map(child => (
          <li key={child.turn}>
            <Status status={child.status === 'open' ? 'running' : child.status} short />{' '}
            <Link to="/$project/turns/$turn" params={{ project, turn: child.turn }} search={{}}>
              {plain(child.profile)} <span className="mono">…{child.turn.slice(-8)}</span>
            </Link>
          </li>
        ))}
      </ul>
      {!all && (
        <button type="button" onClick={() => setAll(true)}>
          {w.moreChildren(format.number(of.length))}
        </button>
      )}
    </div>
  )
}

function Stream({ pieces }: { pieces: Writing[] }) {
  const w = useWords()
  const format = useFormat()
  const last = pieces.at(-1)
  return (
    <section className={style.block} data-look="writing" aria-busy="true">
      <div className={style.label}>
        <span aria-hidden="true">▍</span> {w.writing}
      </div>
      {pieces.slice(0, -1).map(piece => (
        <s key={piece.step + piece.attempt} className="muted" title={w.givenUp}>
          <Text most={600}>{piece.text}</Text>
        </s>
      ))}
      {last && last.text.length > TAIL && (
        <p className="muted">… {w.earlier(format.number(last.text.length - TAIL))}</p>
      )}
      {last && <Text>{last.text.slice(-TAIL)}</Text>}
    </section>
  )
}

/** What a step cost. */
export function Figures({ step }: { step: Step }) {
  const w = useWords()
  const format = useFormat()
  if (!step.model) return <span className="muted">{w.noModel}</span>
  const input = step.input_tokens ?? 0
  const cached = input > 0 ? (step.cached_tokens ?? 0) / input : 0
  return (
    <>
      <span>
        {format.tokens(input)}→{format.tokens(step.output_tokens ?? 0)}
      </span>
      <span className={cached > 0 ? style.good : 'muted'}>{w.cached(format.percent(cached))}</span>
      <span>{format.money(step.microdollars ?? 0)}</span>
      {typeof step.took_ms === 'number' && <span>{format.took(step.took_ms)}</span>}
    </>
  )
}

/** What was unusual about a step. */
export function Marks({ step }: { step: Step }) {
  const w = useWords()
  return (
    <>
      {(step.n_asked ?? 1) > 1 && (
        <span className={style.warn} title={w.askedSays}>
          {w.asked(step.n_asked ?? 1)}
        </span>
      )}
      {step.asked_again && (
        <span className={style.warn} title={w.askedAgainSays}>
          ↻ {w.askedAgain}
        </span>
      )}
      {step.reported && (
        <span className="muted" title={w.reportedSays}>
          {w.reported}
        </span>
      )}
    </>
  )
}
