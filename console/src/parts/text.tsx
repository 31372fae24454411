import { memo, useState } from 'react'
import { useFormat } from '../words'
import style from './parts.module.css'
import { visible } from './visible'
import { useWords } from './words'

/** The most characters that are shown at first, of which this many at the end. More would make the page slow. */
const MOST = 12_000
const END = 2_000

/** Text of models, tools and users, as text: nothing in it is a link, markup or hidden. */
export const Text = memo(function Text({ children, most = MOST }: { children: string; most?: number }) {
  const w = useWords()
  const format = useFormat()
  const [all, setAll] = useState(false)
  if (all || children.length <= most) return <Shown text={children} />
  const end = Math.min(END, Math.floor(most / 4))
  return (
    <div>
      <Shown text={children.slice(0, most - end)} />
      <p className="muted">… {w.leftOut(format.number(children.length - most))} …</p>
      <Shown text={children.slice(-end)} />
      {children.length <= 1_000_000 && (
        <button type="button" onClick={() => setAll(true)}>
          {w.showAll(format.number(children.length))}
        </button>
      )}
    </div>
  )
})

function Shown({ text }: { text: string }) {
  const w = useWords()
  return (
    <div className={style.text} dir="auto">
      {visible(text).map((piece, n) =>
        typeof piece === 'string' ? (
          piece
        ) : (
          // biome-ignore lint/suspicious/noArrayIndexKey: pieces of one text never move
          <span key={n} className={style.mark} title={w.hiddenCharacter(piece.hidden)}>
            {piece.hidden}
          </span>
        ),
      )}
    </div>
  )
}
