// Consume with kafkajs until the input ends: members.js BROKERS LIBRARY ASSIGNOR GROUP COUNT TOPIC...
// Prints {"member", "owns"} after each assignment.
'use strict'

const { Kafka, logLevel } = require('kafkajs')

const [brokers, , , groupId, count, ...topics] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'kafkajs', brokers: brokers.split(','), logLevel: logLevel.ERROR })

async function join() {
  const consumer = kafka.consumer({ groupId })
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) =>
    console.log(JSON.stringify({ member: payload.memberId, owns: payload.memberAssignment })),
  )
  await consumer.connect()
  await consumer.subscribe({ topics })
  await consumer.run({ eachMessage: async () => {} })
  return consumer
}

async function main() {
  const consumers = await Promise.all(Array.from({ length: Number(count) }, join))
  process.stdin.resume()
  process.stdin.on('end', async () => {
    await Promise.all(consumers.map((consumer) => consumer.disconnect()))
    process.exit(0)
  })
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
