/** A project for each test on the real server at WAYBILL_API_URL, agents that follow a script, and a network that fails. */
import { connect, createServer, type Socket } from 'node:net'
import { type Schemas, Waybill } from 'waybill-ai'

export const server = new Waybill()

export async function project(options: { url?: string } = {}): Promise<Waybill> {
  const slug = `test-${crypto.randomUUID().slice(0, 18)}`
  await server.call('create_project', { body: { slug } })
  return server.with({ project: slug, ...options })
}

/** An agent that follows a script, without any model. */
export function agent(name: string, script: unknown[], more: Partial<Schemas['Profile']> = {}): { profile: Schemas['Profile'] } {
  const llm_config = { provider: 'demo', model: 'demo', params: { script } }
  return { profile: { name, worker_target: 'llm', system_prompt_template: `You are ${name}.`, llm_config, ...more } as Schemas['Profile'] }
}

export async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = []
  for await (const item of items) found.push(item)
  return found
}

/** A network in front of the server, which cuts the connection of each answer as `cut` says: after how many bytes, or null for not at all. */
export async function network(cut: (request: string) => number | null) {
  const { hostname, port } = new URL(server.url)
  const open = new Set<Socket>()
  let nCut = 0
  const listener = createServer(client => {
    const to = connect(Number(port), hostname)
    let left: number | null = null
    open.add(client)
    client.on('data', bytes => {
      const [line] = bytes.toString('latin1').split('\r\n')
      if (line?.endsWith(' HTTP/1.1')) left = cut(line)
      to.write(bytes)
    })
    to.on('data', bytes => {
      const whole = left === null || bytes.length <= left
      client.write(whole ? bytes : bytes.subarray(0, left!), () => {
        if (whole) return
        nCut += 1
        client.destroy()
        to.destroy()
      })
      if (left !== null) left -= bytes.length
    })
    for (const [one, other] of [[client, to], [to, client]] as const) one.on('error', () => other.destroy()).on('close', () => other.destroy())
    client.on('close', () => open.delete(client))
  })
  await new Promise<void>(done => listener.listen(0, '127.0.0.1', done))
  const address = listener.address() as { port: number }
  const close = () => {
    for (const one of open) one.destroy()
    listener.close()
  }
  return { url: `http://127.0.0.1:${address.port}`, cuts: () => nCut, [Symbol.dispose]: close }
}
