import { useMutation } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { type FormEvent, useId, useState } from 'react'
import { api, once, take } from '../../api'
import { Asked, Command, Dialog, Failed } from '../../parts'
import { RecordedAs } from './actor'
import { useFirst } from './focus'
import { useProfiles } from './profiles'
import style from './runs.module.css'
import { useWords } from './words'

/** The demo team of `waybill dev`: who is asked first. */
const demo = ['publisher', 'editor']

/** Starts a run: which agent, and what it must do. */
export function StartDialog({ project, close }: { project: string; close: () => void }) {
  const w = useWords()
  const profiles = useProfiles(project)
  return (
    <Dialog title={w.startRun} close={close}>
      <Asked query={profiles} rows={4}>
        {names =>
          names.length > 0 ? (
            <Form project={project} names={names} close={close} />
          ) : (
            <div className={style.form}>
              <p>{w.noProfiles}</p>
              <Command>waybill init my-team && waybill apply -f my-team</Command>
            </div>
          )
        }
      </Asked>
    </Dialog>
  )
}

function Form({ project, names, close }: { project: string; names: string[]; close: () => void }) {
  const w = useWords()
  const id = useId()
  const go = useNavigate()
  const first = useFirst<HTMLTextAreaElement>()
  const ofDemo = demo.find(name => names.includes(name))
  const [profile, setProfile] = useState(ofDemo ?? names[0]!)
  const [instruction, setInstruction] = useState(ofDemo ? 'How is bread made?' : '')
  // One key for this dialog and what is written in it: a second click does not start a second run.
  const [headers, setHeaders] = useState(once)
  const start = useMutation({
    mutationFn: () =>
      take(
        api.POST('/v1/projects/{project}/turns', {
          params: { path: { project }, header: headers },
          body: { profile_name: profile, instruction },
        }),
      ),
    onSuccess: started => {
      close()
      go({ to: '/$project/runs/$turn', params: { project, turn: started.agent_turn_id } })
    },
  })
  const submit = (event: FormEvent) => {
    event.preventDefault()
    if (instruction.trim() !== '' && !start.isPending) start.mutate()
  }
  return (
    <form className={style.form} onSubmit={submit}>
      <label htmlFor={`${id}p`}>{w.profile}</label>
      <select
        id={`${id}p`}
        value={profile}
        onChange={event => {
          setProfile(event.target.value)
          setHeaders(once())
        }}
      >
        {names.map(name => (
          <option key={name} value={name}>
            {name === ofDemo ? `${name} (${w.demoTeam})` : name}
          </option>
        ))}
      </select>
      <label htmlFor={`${id}i`}>{w.instruction}</label>
      <textarea
        ref={first}
        id={`${id}i`}
        rows={5}
        required
        value={instruction}
        onChange={event => {
          setInstruction(event.target.value)
          setHeaders(once())
        }}
        onKeyDown={event => {
          if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) submit(event)
        }}
      />
      {start.error && <Failed error={start.error} />}
      <footer>
        <RecordedAs />
        <span className={style.space} />
        <button type="button" onClick={close}>
          {w.cancel}
        </button>
        <button type="submit" className="primary" disabled={start.isPending || instruction.trim() === ''}>
          {start.isPending ? w.starting : w.start}
        </button>
      </footer>
    </form>
  )
}
