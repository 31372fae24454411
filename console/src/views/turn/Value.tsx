import { useState } from 'react'
import { Text } from '../../parts'
import { fieldsOf, textOf } from './transcript'
import style from './turn.module.css'
import { useWords } from './words'

const MOST = 3_000
/** Objects in objects are shown by their fields down to here, and as JSON below. */
const DEEP = 3

/** JSON or text of others. An object is shown by its fields; its bytes are one click away. */
export function Value({ value }: { value: unknown }) {
  const w = useWords()
  const [raw, setRaw] = useState(false)
  const fields = fieldsOf(value)
  if (!fields || fields.length === 0) return <Plain value={value} />
  return (
    <div>
      {raw ? (
        <div className="mono">
          <Text most={MOST}>{textOf(value)}</Text>
        </div>
      ) : (
        <Fields of={fields} depth={1} />
      )}
      <button type="button" className={`plain ${style.raw}`} onClick={() => setRaw(!raw)}>
        {raw ? w.byFields : w.asWritten}
      </button>
    </div>
  )
}

function Fields({ of, depth }: { of: [string, unknown][]; depth: number }) {
  return (
    <dl className={style.fields}>
      {of.map(([name, value]) => {
        const inner = typeof value === 'string' || depth >= DEEP ? null : fieldsOf(value)
        return (
          <div key={name}>
            <dt>
              <Text>{name}</Text>
            </dt>
            <dd>{inner && inner.length > 0 ? <Fields of={inner} depth={depth + 1} /> : <Plain value={value} />}</dd>
          </div>
        )
      })}
    </dl>
  )
}

function Plain({ value }: { value: unknown }) {
  return (
    <div className={typeof value === 'string' ? undefined : 'mono'}>
      <Text most={MOST}>{textOf(value)}</Text>
    </div>
  )
}
