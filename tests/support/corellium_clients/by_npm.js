'use strict'
// What the published JavaScript client does with the stand-in for Corellium, told as JSON.
const { Corellium } = require('@corellium/corellium-api')

async function main () {
  const [endpoint, apiToken] = process.argv.slice(2)
  const told = {}
  const corellium = new Corellium({ endpoint, apiToken })
  await corellium.login()
  const [project] = await corellium.projects()
  told.project = { id: project.id, name: project.name, cores: project.info.quotas.cores }
  told.models = (await corellium.supported()).map(model => model.flavor).sort()
  const instance = await project.createInstance({ flavor: 'kronos', os: '1.1.1', name: 'by npm' })
  await instance.finishRestore()
  await instance.waitForState('on')
  told.created = { id: instance.id, name: instance.name, flavor: instance.flavor, state: instance.state }
  const console_ = await instance.console()
  const said = []
  await new Promise((resolve, reject) => {
    console_.on('error', reject)
    console_.on('data', data => {
      said.push(data.toString())
      if (said.join('').includes('you said: hello')) resolve()
    })
    console_.write('hello\r')
  })
  console_.destroy()
  told.console = said.join('')
  told.snapshots = (await instance.snapshots()).map(({ name, fresh }) => ({ name, fresh }))
  const session = await instance.webplayer({ console: true, powerManagement: true }, null, 600)
  told.session = { token: session.info.token, expiration: session.info.expiration }
  await instance.rename('renamed by npm')
  await instance.stop()
  await instance.update()
  told.stopped = { name: instance.name, state: instance.state }
  try {
    await project.createInstance({ flavor: 'nokia', os: '1' })
  } catch (error) {
    told.refused = { message: error.message, field: error.field, code: error.code }
  }
  await instance.destroy()
  told.left = (await project.instances()).map(({ name }) => name)
  process.stdout.write(JSON.stringify(told))
}

main().then(() => process.exit(0), error => {
  console.error(error)
  process.exit(1)
})
