/** The smaller tabs: tools, what was left out, and the receipt. */
import { useVirtualizer } from '@tanstack/react-virtual'
import { useRef } from 'react'
import { Asked, Empty, External, Id, plain, Text } from '../../parts'
import { stateOf, type Verification } from '../../verify'
import { useFormat } from '../../words'
import { Tick } from './Badges'
import { type Call, useCard } from './data'
import { type Read, ToolInRequest } from './InRequest'
import { type LeftOut, type Receipt, reasonsOf, type Seen } from './model'
import style from './saw.module.css'
import { useWords } from './words'

export interface Tool {
  tool_name?: string
  description?: string
  parameters?: unknown
}

export function Tools({
  call,
  tools,
  verification,
  said,
}: {
  call: Call
  tools: Seen['tools']
  verification: Verification
  said: Read['said']
}) {
  const w = useWords()
  const format = useFormat()
  const card = useCard(call, tools?.card_id)
  if (!tools) return <Empty title={w.toolsNone} />
  return (
    <section className={style.pad}>
      <p>
        {w.toolsOf(format.number(tools.names.length), format.number(tools.n_tokens))} ·{' '}
        <Tick state={stateOf(verification.cards.get(tools.card_id))} /> <Id value={tools.card_id} />
      </p>
      <Asked query={card}>
        {reading => {
          const listed = Array.isArray(reading.content) ? (reading.content as Tool[]) : null
          if (!listed) return <p>{plain(tools.names.join(', '))}</p>
          return listed.map((tool, n) => (
            <article key={tool.tool_name ?? n} className={style.tool}>
              <h2>
                <code>{plain(tool.tool_name)}</code>
              </h2>
              {tool.description && <Text>{tool.description}</Text>}
              <ToolInRequest tool={tool} n={n} read={{ said, verification }} />
              {tool.parameters !== undefined && (
                <details>
                  <summary>{w.parameters}</summary>
                  <div className="mono">
                    <Text>{JSON.stringify(tool.parameters, null, 2)}</Text>
                  </div>
                </details>
              )}
            </article>
          ))
        }}
      </Asked>
    </section>
  )
}

export function Left({
  leftOut,
  receipt,
  verification,
  card,
  setCard,
}: {
  leftOut: LeftOut[]
  receipt: Receipt
  verification: Verification
  card: string | undefined
  setCard: (card: string) => void
}) {
  const w = useWords()
  const format = useFormat()
  const box = useRef<HTMLDivElement>(null)
  const rows = useVirtualizer({
    count: leftOut.length,
    getScrollElement: () => box.current,
    estimateSize: () => 30,
    overscan: 12,
  })
  const failed = receipt.left_out ?? []
  if (leftOut.length === 0 && failed.length === 0)
    return <Empty title={receipt.recorded ? w.leftNoneRecorded : w.leftNone} />
  return (
    <section className={style.pad}>
      {failed.length > 0 && (
        <>
          <h2>{w.failedBlocks}</h2>
          <ul className={style.plainList}>
            {failed.map(({ key, why }) => (
              <li key={key}>
                <code>{plain(key)}</code> <Text>{why}</Text>
              </li>
            ))}
          </ul>
        </>
      )}
      <p>
        {reasonsOf(leftOut)
          .map(
            ({ reason, n, tokens }) =>
              `${w.reasons[reason]}: ${format.number(n)} (${format.tokens(tokens)} ${w.tokens})`,
          )
          .join(' · ')}
      </p>
      <div ref={box} className={`${style.scroll} ${style.leftRows}`}>
        <ul className={style.whole} style={{ height: rows.getTotalSize() }}>
          {rows.getVirtualItems().map(({ index, start }) => {
            const { cardId, reason, fact } = leftOut[index]!
            return (
              <li
                key={cardId}
                className={`${style.leftRow} ${cardId === card ? style.chosen : ''}`}
                style={{ transform: `translateY(${start}px)` }}
              >
                <Tick state={stateOf(verification.cards.get(cardId))} />
                <button type="button" className="plain" onClick={() => setCard(cardId)} aria-pressed={cardId === card}>
                  <span className="mono">…{cardId.slice(-8)}</span>
                </button>
                <span className="cut">{w.reasons[reason]}</span>
                <code className="cut">{plain(fact?.type ?? (fact?.gone ? w.goneOf(fact.gone) : ''))}</code>
                <span className="number">{fact?.nTokens == null ? '' : format.tokens(fact.nTokens)}</span>
                <span className="muted cut">{fact?.place == null ? '' : w.boxPlace(format.number(fact.place))}</span>
                <span>{fact?.origin === 'external' && <External short />}</span>
              </li>
            )
          })}
        </ul>
      </div>
    </section>
  )
}

export function ReceiptTab({ receipt }: { receipt: Receipt }) {
  const w = useWords()
  return (
    <section className={style.pad}>
      <p>{w.receiptSays}</p>
      {receipt.reported && <p>{w.reported}</p>}
      <div className="mono">
        <Text>{JSON.stringify(receipt, null, 2)}</Text>
      </div>
    </section>
  )
}
