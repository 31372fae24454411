/** The list of messages. Only the rows on the screen exist. */
import { useVirtualizer } from '@tanstack/react-virtual'
import { type KeyboardEvent, useEffect, useRef } from 'react'
import { External } from '../../parts'
import { useFormat } from '../../words'
import { colourOf, letterOf, type SeenMessage } from './model'
import style from './saw.module.css'
import { useWords } from './words'

const ROW = 26

export function Layer({ layer }: { layer: string }) {
  return (
    <span className={style.layer} style={{ '--layer': colourOf(layer) } as object}>
      <b aria-hidden="true">{letterOf(layer)}</b>
      <span className="cut">{layer.replace(/__context$/, '')}</span>
    </span>
  )
}

export function Messages({
  messages,
  selected,
  select,
  fromText,
}: {
  messages: SeenMessage[]
  selected: number
  select: (n: number) => void
  fromText: (message: SeenMessage) => string
}) {
  const w = useWords()
  const format = useFormat()
  const box = useRef<HTMLDivElement>(null)
  const rows = useVirtualizer({
    count: messages.length,
    getScrollElement: () => box.current,
    estimateSize: () => ROW,
    overscan: 12,
  })
  const isFirst = useRef(true)
  useEffect(() => {
    if (selected > 0) rows.scrollToIndex(selected - 1, { align: isFirst.current ? 'center' : 'auto' })
    isFirst.current = false
  }, [selected, rows])
  const walk = (event: KeyboardEvent) => {
    const page = Math.max(1, Math.floor((box.current?.clientHeight ?? 0) / ROW) - 1)
    const to = {
      ArrowDown: selected + 1,
      ArrowUp: selected - 1,
      PageDown: selected + page,
      PageUp: selected - page,
      Home: 1,
      End: messages.length,
    }[event.key]
    if (to === undefined) return
    event.preventDefault()
    select(Math.min(messages.length, Math.max(1, to)))
  }
  return (
    <div className={style.list}>
      <div className={`${style.head} ${style.columns}`} aria-hidden="true">
        <span className="number">#</span>
        <span>{w.layer}</span>
        <span>{w.role}</span>
        <span className="number">{w.tokens}</span>
        <span>{w.from}</span>
      </div>
      <div
        ref={box}
        className={style.scroll}
        role="listbox"
        tabIndex={0}
        aria-label={w.messages}
        aria-activedescendant={selected > 0 ? `saw-message-${selected}` : undefined}
        onKeyDown={walk}
      >
        <div role="none" className={style.whole} style={{ height: rows.getTotalSize() }}>
          {rows.getVirtualItems().map(({ index, start }) => {
            const message = messages[index]!
            const from = fromText(message)
            return (
              // biome-ignore lint/a11y/useKeyWithClickEvents: the list has the keys
              // biome-ignore lint/a11y/useFocusableInteractive: the list has the focus
              <div
                key={message.n}
                id={`saw-message-${message.n}`}
                role="option"
                aria-selected={message.n === selected}
                aria-posinset={message.n}
                aria-setsize={messages.length}
                className={`${style.message} ${style.columns}`}
                style={{ transform: `translateY(${start}px)` }}
                onClick={() => select(message.n)}
              >
                <span className="number muted">{message.n}</span>
                <Layer layer={message.layer} />
                <span>{message.role}</span>
                <span className="number" title={format.number(message.n_tokens)}>
                  {format.tokens(message.n_tokens)}
                </span>
                <span className="cut" title={from}>
                  {message.sources.some(source => source.origin === 'external') && (
                    <>
                      <External short />{' '}
                    </>
                  )}
                  {from}
                </span>
              </div>
            )
          })}
        </div>
      </div>
    </div>
  )
}
